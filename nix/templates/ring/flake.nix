{
  description = "Four DGX Sparks in a ring without a switch, serving DeepSeek-V4.1-Flash";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
    # it pins the kernel it was tested with, so it keeps a nixpkgs of its own
    dgx-spark.url = "github:graham33/nixos-dgx-spark";
    dsv41.url = "github:dsv41/dsv41";
  };

  outputs =
    { nixpkgs, dgx-spark, dsv41, ... }:
    {
      nixosConfigurations = nixpkgs.lib.genAttrs [ "spark1" "spark2" "spark3" "spark4" ] (
        name:
        nixpkgs.lib.nixosSystem {
          system = "aarch64-linux";
          modules = [
            dgx-spark.nixosModules.dgx-spark
            dsv41.nixosModules.default
            ./fleet.nix
            # of nixos-generate-config on that host: its disks and its boot loader
            (./. + "/${name}.nix")
            { networking.hostName = name; }
          ];
        }
      );
    };
}
