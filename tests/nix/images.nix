# The images on the stand-in for nixpkgs, for tests that drive nix itself: on a synthetic base, with
# stubs of the engine's sources.
{
  bases ? ./bases,
  system ? builtins.currentSystem,
  sources ? ./stub/sources,
  # a folder with lib/libnccl.so.2 in the place of the patched one
  nccl ? null,
}:
let
  lib = import ./hostpkgs/lib.nix;
  pkgs = import ./hostpkgs { inherit lib system; };
  # CUDA cannot be had here: what nccl-sparkring is without it
  patched = pkgs.callPackage ../../nix/packages/nccl-sparkring.nix {
    config.allowUnfree = false;
    pins = null;
  };
in
import ../../nix/images {
  inherit
    pkgs
    bases
    sources
    ;
  nccl = if nccl == null then patched else nccl;
  aot = (import ./kernels.nix { inherit system; }).flashinfer-aot-sm121;
}
