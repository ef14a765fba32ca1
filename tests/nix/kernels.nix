# flashinfer-aot-sm121 on the stand-in for nixpkgs, with Debian's g++ for arm64.
{
  system ? builtins.currentSystem,
}:
let
  lib = import ./hostpkgs/lib.nix;
  pkgs = import ./hostpkgs { inherit lib system; };
  made = args: import ../../nix/packages/flashinfer-aot.nix ({ inherit lib pkgs; bases = ./bases; } // args);
in
{
  flashinfer-aot-sm121 = made { };
  norm = made { modules = [ "norm" ]; };
}
