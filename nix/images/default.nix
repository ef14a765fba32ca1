# Our images. `bases` is the flake input with base manifests, `sources` the package of that name,
# `nccl` the package nccl-sparkring for arm64, whatever machine builds the images. `aot` is the
# package flashinfer-aot-sm121: with it, an image whose engine has the same FlashInfer has an
# attribute `ahead`, itself with these modules as one more layer (nix build .#image-tp3.ahead).
{
  pkgs,
  bases,
  sources,
  nccl,
  aot ? null,
}:
let
  inherit (pkgs) lib;
  machinery = import ./machinery.nix { inherit lib pkgs bases; };
  packages = import ./packages.nix { inherit lib pkgs machinery; };
  ours = import ./ours.nix { inherit lib machinery; };
  debian = import ./debian.nix { inherit packages; };
  local = import ./local.nix {
    inherit
      lib
      machinery
      packages
      debian
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
// import ./engine/images.nix {
  inherit
    lib
    machinery
    packages
    debian
    ours
    nccl
    aot
    ;
}
