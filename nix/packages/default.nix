# Our packages on one system's nixpkgs.
{
  pkgs,
  bases,
  pins,
  poetry2nix,
  # nccl-sparkring for the machines of our images
  nccl,
}:
let
  inherit (pkgs) callPackage;
  env =
    groups:
    callPackage ./local-env.nix {
      inherit (packages) dsv41 row-store;
      inherit groups poetry2nix;
    };

  packages = {
    row-store = callPackage ./row-store.nix { };
    dsv41 = callPackage ./dsv41.nix { inherit (packages) row-store; };
    local-env = env [ "local" ];
    sources = callPackage ./sources.nix { inherit pins; };
    nccl-sparkring = callPackage ./nccl-sparkring.nix { inherit pins; };
    flashinfer-aot-sm121 = import ./flashinfer-aot.nix { inherit (pkgs) lib; inherit pkgs bases; };
    images = import ../images {
      inherit pkgs bases nccl;
      inherit (packages) sources;
      aot = packages.flashinfer-aot-sm121;
    };
    # with what the tests need; for checks and the shell
    dev-env = env [
      "local"
      "dev"
    ];
  };
in
packages
