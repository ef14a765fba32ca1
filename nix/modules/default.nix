# services.dsv41: one rank of the fleet on this host. Every host imports the same configuration and finds its own rank by
# name. What an engine is told stands in the Plan, which `dsv41 plan` makes in the store; no flag of an engine is here.
{
  imports = [
    ./options.nix
    ./node-options.nix
    ./plan.nix
    ./asserts.nix
    ./image.nix
    ./rows.nix
    ./weights.nix
    ./rank.nix
    ./fabric.nix
    ./observe.nix
  ];
}
