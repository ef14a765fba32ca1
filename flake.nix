{
  description = "Serve DeepSeek-V4.1-Flash on three or four DGX Sparks from pinned configuration";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
    # unmaintained since 2025, so pinned for good; only nix/packages/local-env.nix uses it
    poetry2nix = {
      url = "github:nix-community/poetry2nix/ce2369db77f45688172384bbeb962bc6c2ea6f94";
      flake = false;
    };
  };

  outputs =
    { nixpkgs, poetry2nix, ... }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];

      # one system's nixpkgs and our packages on it, which every output is made from
      scope =
        system:
        let
          pkgs = nixpkgs.legacyPackages.${system};
        in
        {
          inherit pkgs;
          packages = import ./nix/packages {
            inherit pkgs;
            poetry2nix = import poetry2nix { inherit pkgs; };
          };
        };
      each = f: lib.genAttrs systems (system: f (scope system));
    in
    {
      packages = each (
        { packages, ... }:
        {
          inherit (packages) dsv41 local-env row-store;
          default = packages.dsv41;
        }
      );
      apps = each (import ./nix/apps.nix);
      checks = each (import ./nix/checks.nix);
      devShells = each (scope: { default = import ./nix/shell.nix scope; });
    };
}
