{
  description = "Serve DeepSeek-V4.1-Flash on three or four DGX Sparks from pinned configuration";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
    # unmaintained since 2025, so pinned for good; only nix/packages/local-env.nix uses it
    poetry2nix = {
      url = "github:nix-community/poetry2nix/ce2369db77f45688172384bbeb962bc6c2ea6f94";
      flake = false;
    };

    # manifests of base images; checks put a synthetic base in their place
    bases.url = "path:./nix/images/bases";
    bases.flake = false;

    # sources of engine parts, taken as they are. nix/pins.nix says how: by the hash in flake.lock,
    # or as long as there is none by the SHA-256 in sources.manifest.
    sglang.url = "github:sgl-project/sglang/f80c91a4b97e52e17fbcff088aa6b47b6270f6b9";
    sglang.flake = false;
    flashinfer.url = "github:flashinfer-ai/flashinfer/fb28d7242b3506a2348265962041acc1fb56cca4";
    flashinfer.flake = false;
    b12x.url = "github:local-inference-lab/b12x/a7d7d29b2ef8869086e0ceaa787321f17544e3c9";
    b12x.flake = false;
    sparkring.url = "github:FujitsuPolycom/sparkring/4aa030ad8757302a0a5961df918065987de89f4c";
    sparkring.flake = false;
    nccl.url = "github:NVIDIA/nccl/73cf112295c33aee2b895f329f592f2a9b4b0f97"; # v2.30.7-1
    nccl.flake = false;
  };

  outputs =
    { nixpkgs, poetry2nix, ... }@inputs:
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
            inherit (inputs) bases;
            pins = import ./nix/pins.nix { inherit pkgs inputs; };
            poetry2nix = import poetry2nix { inherit pkgs; };
            nccl = (scope "aarch64-linux").packages.nccl-sparkring;
          };
        };
      each = f: lib.genAttrs systems (system: f (scope system));
    in
    {
      packages = each (
        { packages, pkgs }:
        packages.images
        // {
          nixos-options = import ./nix/docs.nix { inherit lib pkgs; };
          inherit (packages)
            dsv41
            flashinfer-aot-sm121
            local-env
            nccl-sparkring
            row-store
            sources
            ;
          default = packages.dsv41;
        }
      );
      apps = each (import ./nix/apps.nix);
      checks = each (import ./nix/checks.nix);
      devShells = each (scope: { default = import ./nix/shell.nix scope; });
      nixosModules.default = ./nix/modules;
      templates = import ./nix/templates;
    };
}
