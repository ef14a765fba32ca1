# Locked packages, a fixed-output derivation each; the locks name no address.
{ lib, pkgs, machinery }:
let
  inherit (machinery) fixed python;
  withPip = "${pkgs.python3.withPackages (ps: [ ps.pip ])}/bin/python";

  # A Debian package: from the mirror that DSV41_DEB_MIRROR names, else from the dated snapshot of
  # the archive, which keeps what point releases drop.
  deb =
    snapshot: package:
    fixed
      {
        name = baseNameOf package.file;
        inherit (package) sha256;
        impure = [ "DSV41_DEB_MIRROR" ];
      }
      ''
        mirror=''${DSV41_DEB_MIRROR:-https://snapshot.debian.org/archive/debian/${snapshot}}
        ${python} ${./tools}/download.py "''${mirror%/}/${package.file}" ${package.sha256} "$out"
      '';

  # A wheel, by pip with its hash required. pip takes the index from the machine's configuration.
  wheel =
    python: package:
    let
      tags = lib.splitString "-" (lib.head (builtins.match "(.*)\\.whl" package.file));
      platforms = lib.splitString "." (lib.last tags);
    in
    fixed
      {
        name = package.file;
        inherit (package) sha256;
        impure = [
          "PIP_INDEX_URL"
          "PIP_EXTRA_INDEX_URL"
          "PIP_FIND_LINKS"
          "PIP_CERT"
          "PIP_DEFAULT_TIMEOUT"
        ];
      }
      ''
        # the machine's own constraints are about what it installs for itself
        export PIP_CONSTRAINT=/dev/null
        echo '${package.name}==${package.version} --hash=sha256:${package.sha256}' > requirement
        ${withPip} -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps \
          --only-binary :all: --require-hashes --requirement requirement --dest wheels \
          --implementation cp --python-version ${python} \
          --abi cp${builtins.replaceStrings [ "." ] [ "" ] python} --abi abi3 --abi none \
          ${lib.concatMapStringsSep " " (p: "--platform ${p}") platforms}
        mv wheels/*.whl "$out"
        true
      '';
in
{
  inherit deb wheel;
  # sources of a layer (tools/layer_sources.py)
  debs =
    { lock, exclude }:
    map (package: {
      type = "deb";
      path = "${deb lock.snapshot package}";
      inherit exclude;
    }) lock.packages;
  wheels =
    {
      lock,
      prefix,
      site,
      only ? (_: true),
      # package -> member -> SHA-256, where the wheel's own RECORD is wrong
      amended ? { },
    }:
    map (
      package:
      {
        type = "wheel";
        path = "${wheel lock.python package}";
        inherit (package) file;
        inherit prefix site;
      }
      // lib.optionalAttrs (amended ? ${package.name}) { amended = amended.${package.name}; }
    ) (lib.filter only lock.wheels);
}
