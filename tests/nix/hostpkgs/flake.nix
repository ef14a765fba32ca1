{
  description = "A stand-in for nixpkgs: a small lib of its own over a Debian host's own tools";

  outputs =
    { self }:
    let
      lib = import ./lib.nix;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (
        system: import ./. { inherit system lib; }
      );
    };
}
