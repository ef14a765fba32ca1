# Packages of the stand-in: real functions (mkDerivation, runCommand, ...) that build with the
# host's bash, compiler and Python, and host tools that are no more than a name under /usr.
{ system, lib }:
let
  # what is only for evaluation stays out of the derivation
  forBuilder = attrs: removeAttrs attrs [ "meta" "passthru" "env" ] // attrs.env or { };
  mkDerivation =
    attrs:
    derivation (
      forBuilder attrs
      // {
        name = attrs.name or "${attrs.pname}-${attrs.version}";
        inherit system;
        builder = "/bin/bash";
        args = [ ./stdenv.sh ];
      }
    )
    // {
      pname = attrs.pname or attrs.name;
      version = attrs.version or "";
      meta = attrs.meta or { };
      overrideAttrs = f: mkDerivation (attrs // f attrs);
    }
    // attrs.passthru or { };

  hostTool = name: {
    type = "host-tool";
    outPath = "/usr";
    pname = name;
    meta.mainProgram = name;
  };

  python = import ./python.nix { inherit lib mkDerivation; };

  pkgs = {
    inherit lib system;
    callPackage = lib.callPackageWith pkgs;
    stdenv = {
      inherit mkDerivation;
      hostPlatform = { inherit system; };
    };

    runCommand =
      name: attrs: buildCommand:
      mkDerivation ({ inherit name buildCommand; } // attrs);
    # evaluated only: nothing is fetched here
    fetchurl =
      {
        name,
        url,
        sha256,
      }:
      mkDerivation {
        inherit name url;
        outputHashMode = "flat";
        outputHashAlgo = "sha256";
        outputHash = sha256;
        buildCommand = "curl --fail --location --output $out $url";
      };
    writeTextFile =
      {
        name,
        text,
        executable ? false,
        destination ? "",
        meta ? { },
      }:
      mkDerivation {
        inherit name text meta;
        passAsFile = [ "text" ];
        buildCommand = ''
          mkdir -p "$(dirname "$out${destination}")"
          install -m ${if executable then "755" else "644"} "$textPath" "$out${destination}"
        '';
      };
    writeText = name: text: pkgs.writeTextFile { inherit name text; };
    writeTextDir =
      path: text:
      pkgs.writeTextFile {
        name = baseNameOf path;
        inherit text;
        destination = "/${path}";
      };
    writeShellApplication =
      {
        name,
        text,
        meta ? { },
      }:
      pkgs.writeTextFile {
        inherit name;
        executable = true;
        destination = "/bin/${name}";
        meta = { mainProgram = name; } // meta;
        text = ''
          #!/bin/bash
          set -o errexit -o nounset -o pipefail
          ${text}'';
      };
    # evaluated only: a shell of the host needs no stand-in
    mkShell =
      { packages, shellHook }:
      mkDerivation {
        name = "shell";
        inherit shellHook;
        nativeBuildInputs = packages;
        buildCommand = "touch $out";
      };

    # where nixpkgs has the certificates, those that the host trusts
    cacert = mkDerivation {
      name = "cacert";
      buildCommand = ''
        mkdir -p "$out/etc/ssl/certs"
        ln -s /etc/ssl/certs/ca-certificates.crt "$out/etc/ssl/certs/ca-bundle.crt"
      '';
    };
    # evaluated only: there is no CUDA here
    config.allowUnfree = true;
    cudaPackages.nccl = mkDerivation {
      pname = "nccl";
      version = "2.30.7-1";
      buildCommand = "exit 1";
    };

    # Debian's g++-aarch64-linux-gnu
    pkgsCross.aarch64-multiplatform.stdenv.cc = hostTool "aarch64-linux-gnu-g++" // {
      targetPrefix = "aarch64-linux-gnu-";
      bintools = hostTool "aarch64-linux-gnu-strip";
    };

    cmake = python.tool "cmake";
    ninja = python.tool "ninja";
    curl = hostTool "curl";
    fish = hostTool "fish";
    git = hostTool "git";
    gnumake = hostTool "make";
    openssh = hostTool "ssh";
    zsh = hostTool "zsh";
    gcc = hostTool "g++";
    patch = hostTool "patch";
    patchelf = hostTool "patchelf";
    podman = hostTool "podman";
    shellcheck = hostTool "shellcheck";
    skopeo = hostTool "skopeo";
    inherit (python) python3;
  };
in
pkgs
