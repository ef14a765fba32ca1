# Our images. `bases` is the flake input with base manifests, `sources` the package of that name.
{
  pkgs,
  bases,
  sources,
}:
let
  inherit (pkgs) lib;
  machinery = import ./machinery.nix { inherit lib pkgs bases; };
  packages = import ./packages.nix { inherit lib pkgs machinery; };
  ours = import ./ours.nix { inherit lib machinery; };
  local = import ./local.nix {
    inherit
      lib
      machinery
      packages
      ours
      ;
  };
  # the names of OCI for the machines of our systems
  arch = {
    x86_64-linux = "amd64";
    aarch64-linux = "arm64";
  };
in
{
  image-local = local arch.${pkgs.stdenv.hostPlatform.system};
}
// import ./recipe.nix {
  inherit
    lib
    machinery
    packages
    ours
    sources
    ;
}
