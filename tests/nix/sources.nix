# What the networked packages do, on stand-ins of what they fetch: `sources` by its real builder on
# synthetic trees, `nccl-sparkring` with a small library and a patch of it, and pins.nix itself.
{ pkgs }:
let
  inherit (pkgs) lib;

  synthetic = pkgs.runCommand "synthetic-sources" { nativeBuildInputs = [ pkgs.python3 ]; } ''
    python3 ${./synthetic_sources.py} "$out"
  '';
  at = name: "${synthetic}/${name}";

  # of nixpkgs' NCCL this has what our package changes
  nccl = pkgs.stdenv.mkDerivation {
    pname = "nccl";
    version = "0";
    makeFlags = [ "NVCC_GENCODE=all" ];
    buildPhase = ''
      ''${CXX:-g++} -shared -fPIC -Wl,-rpath,/nix/store/none \
        -o libnccl.so.2.30.7 transport.cc
    '';
    installPhase = ''
      install -D libnccl.so.2.30.7 "$out/lib/libnccl.so.2.30.7"
      ln -s libnccl.so.2.30.7 "$out/lib/libnccl.so.2"
    '';
  };
  library =
    config:
    pkgs.callPackage ../../nix/packages/nccl-sparkring.nix {
      inherit config;
      cudaPackages = {
        inherit nccl;
      };
      pins = {
        tree = _: ./stub/nccl;
        file = _: throw "no patch of this variant is a pinned file";
      };
      variant = {
        patches = [
          {
            path = "switch.patch";
            sha256 = builtins.hashFile "sha256" ./stub/nccl/switch.patch;
          }
        ];
        markers = [ "STUB_RING_ONLY" ];
        switches.STUB_RING_ONLY = "1";
      };
      # the builder's own: that is not what is tested here
      glibc = "999";
    };

  digest = builtins.hashString "sha256" "an archive";
  # pins.nix on two pins, and an input that must not be fetched
  pins = import ../../nix/pins.nix {
    inherit pkgs;
    inputs = {
      known = ./stub/nccl;
      unknown = throw "an input without a narHash was taken";
    };
    pins =
      map
        (
          pin:
          {
            sha256 = null;
            nar_hash = null;
            commit = "1";
            url = "https://host.example/1/${pin.name}.tar.gz";
          }
          // pin
        )
        [
          {
            name = "known";
            nar_hash = "sha256-1";
          }
          {
            name = "unknown";
            sha256 = digest;
          }
        ];
  };
  refused = value: !(builtins.tryEval (toString value)).success;
  cases = {
    aKnownTreeIsTheInput = pins.tree "known" == ./stub/nccl;
    anUnknownTreeIsTheArchive = lib.isDerivation (pins.tree "unknown");
    aFileIsFetchedByItsHash = (pins.file "unknown").outputHash == digest;
    aTreeIsNoFile = refused (pins.file "known");
    nothingElseIsPinned = refused (pins.tree "other");
    withoutUnfreeItEvaluates = lib.isDerivation (library { allowUnfree = false; });
  };
  wrong = lib.filter (name: !cases.${name}) (lib.attrNames cases);
in
{
  pins =
    if wrong == [ ] then
      pkgs.runCommand "check-pins" { } "touch $out"
    else
      throw "tests/nix/sources.nix: ${toString wrong}";

  sources-builder = pkgs.callPackage ../../nix/packages/sources.nix {
    pins = {
      commit = _: "0000000000000000000000000000000000000001";
      file = at;
      tree = at;
    };
  };
  nccl-builder = library { allowUnfree = true; };
}
