# How images are made: bases by digest, layers, images. Which images there are stands elsewhere.
#
# All derivations are of the builder's system; the architecture of an image is data. No program of
# an image runs while it is built, so an x86-64 machine builds arm64 images, with the same digest.
{
  lib,
  pkgs,
  # a folder of base manifests, each named by its own hex (flake input `bases`)
  bases,
}:
let
  inherit (pkgs) runCommand;
  python = lib.getExe pkgs.python3;
  hexOf = lib.removePrefix "sha256:";
  short = builtins.substring 0 12;
  # names of the store take no other characters; dots may not lead
  storeName = builtins.replaceStrings [ "%" ":" "~" "@" "/" ] [ "-" "-" "-" "-" "-" ];
  # what a builder with network needs of the machine: how it reaches others, and whom it trusts
  network = [
    "http_proxy"
    "https_proxy"
    "no_proxy"
    "HTTP_PROXY"
    "HTTPS_PROXY"
    "NO_PROXY"
    "SSL_CERT_FILE"
  ];
  certificates = "\${SSL_CERT_FILE:-${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt}";

  # One flat file whose SHA-256 (hex) is its hash. The script writes $out.
  fixed =
    {
      name,
      sha256,
      impure ? [ ],
      attrs ? { },
    }:
    script:
    runCommand (storeName name)
      (
        attrs
        // {
          outputHashMode = "flat";
          outputHashAlgo = "sha256";
          outputHash = sha256;
          impureEnvVars = network ++ impure;
          preferLocalBuild = true;
        }
      )
      ''
        export SSL_CERT_FILE="${certificates}"
        ${script}
      '';

  # An object of a registry. It is taken from the folder `blobs` beside the manifests or from
  # DSV41_BLOBS where it lies there, and fetched otherwise.
  object =
    { reference, digest }:
    fixed
      {
        name = "oci-${short (hexOf digest)}";
        sha256 = hexOf digest;
        impure = [ "DSV41_BLOBS" ];
      }
      ''
        export DSV41_BLOBS="${bases}/blobs:''${DSV41_BLOBS:-}"
        ${python} ${./tools}/registry.py ${reference} blobs ${digest} "$out"
      '';

  # A committed manifest or config; whatever is not its own hash is refused.
  committed =
    { reference, digest }:
    let
      name = "${hexOf digest}.json";
      file = "${bases}/${name}";
      found = builtins.hashFile "sha256" file;
    in
    if !builtins.pathExists file then
      throw (
        "D181 The base ${reference} is pinned by ${digest}, and nix/images/bases does not have "
        + "that file. Fix: nix run .#pin-image"
      )
    else if found != hexOf digest then
      throw (
        "D182 nix/images/bases/${name} is not what its name says: its SHA-256 is ${found}. "
        + "Fix: remove it, then nix run .#pin-image"
      )
    else
      file;

  # A base by its name in bases.json: pinned digest, config and layers of the one platform.
  pull =
    name:
    let
      pin = (lib.importJSON "${bases}/bases.json").${name};
      inherit (pin) reference arch;
      read = digest: lib.importJSON (committed { inherit reference digest; });
      top = read pin.digest;
      fits = m: m.platform.os or "" == "linux" && m.platform.architecture or "" == arch;
      found = lib.filter fits top.manifests;
      manifest =
        if !(top ? manifests) then
          top
        else if lib.length found == 1 then
          read (lib.head found).digest
        else
          throw (
            "D182 The index ${pin.digest} of ${reference} has ${toString (lib.length found)} "
            + "manifests for linux/${arch}; expected 1."
          );
    in
    {
      inherit reference arch;
      inherit (pin) digest;
      config = committed {
        inherit reference;
        inherit (manifest.config) digest;
      };
      layers = map (l: { inherit (l) mediaType digest size; }) manifest.layers;
    };

  # A layer from its sources (tools/layer_sources.py). `listed` = {diff_id, size} makes it an object
  # with that hash, which need not be there to know the image's digest. The name carries the hash of
  # the sources: an old layer of the store is then never taken for a new one. `replaces` names the
  # paths of lower layers that it may cover.
  layer =
    {
      name,
      sources,
      rules ? { },
      listed ? null,
      replaces ? [ ],
    }:
    let
      spec = builtins.toJSON { inherit sources rules; };
      named = "layer-${name}-${short (builtins.hashString "sha256" spec)}";
      attrs = {
        inherit spec;
        passAsFile = [ "spec" ];
      };
      script = ''${python} ${./tools}/build_layer.py "$specPath" "$out"'';
      blob =
        if listed == null then
          runCommand named attrs script
        else
          fixed {
            name = named;
            sha256 = hexOf listed.diff_id;
            inherit attrs;
          } script;
    in
    {
      inherit
        name
        named
        blob
        listed
        replaces
        ;
      # its hash and size by writing it to nowhere: the large ones need no second place on the disk
      measured = runCommand "measured-${named}" attrs ''
        ${python} ${./tools}/build_layer.py --measure "$specPath" "$out"
      '';
    };

  # What a layers.json must say of these layers: scripts/image-layers.sh writes it.
  measured =
    layers:
    runCommand "layers.json" { } ''
      ${python} ${./tools}/oci_image.py list "$out" ${
        lib.concatMapStringsSep " " (l: "${l.name}=${l.measured}") layers
      }
    '';

  # An image of layers (bottom to top) on a base or on nothing. `config`: env, prepend (before a
  # list of folders that the base has), entrypoint, cmd, workdir, labels.
  image =
    {
      name,
      arch,
      layers,
      base ? null,
      config ? { },
    }:
    let
      spec =
        { blobs }:
        builtins.toJSON {
          inherit name arch;
          os = "linux";
          base =
            if base == null then
              null
            else
              base
              // {
                blobs = lib.optionalAttrs blobs (
                  lib.listToAttrs (
                    map (
                      l:
                      lib.nameValuePair l.digest "${object {
                        inherit (base) reference;
                        inherit (l) digest;
                      }}"
                    ) base.layers
                  )
                );
              };
          layers = map (l: {
            comment = l.name;
            blob = if l.listed == null || blobs then "${l.blob}" else null;
            inherit (l) replaces;
            diff_id = l.listed.diff_id or null;
            size = l.listed.size or null;
          }) layers;
          config = {
            env = { };
            prepend = { };
            # the Plan names what runs, and podman's --entrypoint with it
            entrypoint = [ ];
            cmd = [ ];
            workdir = "";
            labels = { };
          }
          // config;
        };
      made =
        what: blobs:
        runCommand "image-${name}${lib.optionalString (what == "digest") "-digest"}"
          {
            spec = spec { inherit blobs; };
            passAsFile = [ "spec" ];
          }
          ''
            ${lib.optionalString blobs ''${python} ${./tools}/stacked.py "$specPath"''}
            ${python} ${./tools}/oci_image.py ${what} "$specPath" "$out"
          '';
    in
    lazily "image-${name}" (made "layout" true) {
      inherit arch layers config;
      # the same digest without the layers, for whoever only has to name the image
      digest = made "digest" false;
    };

  # A derivation that can be listed before it is known whether it can be made.
  lazily =
    name: derivation: passthru:
    let
      self = passthru // {
        type = "derivation";
        inherit name;
        inherit (pkgs.stdenv.hostPlatform) system;
        inherit (derivation) drvPath outPath;
        outputs = [ "out" ];
        outputName = "out";
        out = self;
        meta = { };
      };
    in
    self;
in
{
  inherit
    fixed
    image
    layer
    measured
    object
    pull
    python
    ;
}
