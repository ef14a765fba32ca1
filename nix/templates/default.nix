# `nix flake init --template dsv41#NAME`
{
  three-sparks = {
    path = ./three-sparks;
    description = "Three DGX Sparks, each cabled to the two others (profile tp3)";
  };
  four-sparks = {
    path = ./four-sparks;
    description = "Four DGX Sparks on a switch (profile tp4)";
  };
  ring = {
    path = ./ring;
    description = "Four DGX Sparks in a ring, without a switch (profile tp4-ring)";
  };
}
