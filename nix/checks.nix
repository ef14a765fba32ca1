# What `nix flake check` builds.
{ pkgs, packages }:
let
  inherit (pkgs) lib;

  # test files of tests/ in the locked environment, against the installed packages
  pytest =
    name: files:
    pkgs.runCommand "check-${name}"
      {
        src = lib.fileset.toSource {
          root = ../.;
          fileset = lib.fileset.unions [
            ../pyproject.toml
            ../tests
          ];
        };
      }
      ''
        cp -r --no-preserve=mode "$src" project
        cd project
        HOME=$PWD ${packages.dev-env}/bin/python -m pytest -p no:cacheprovider ${files}
        touch "$out"
      '';

  # cases of tests/nix/parity.nix over the lib that this flake was given -> the names that differ
  wanted = lib.importJSON ../tests/nix/parity.json;
  given = import ../tests/nix/parity.nix { inherit lib; };
  differing = lib.filter (n: given.${n} or null != wanted.${n}) (lib.attrNames wanted);
in
{
  # the locked tokenizer and arrays; what needs no package of the environment is for make test alone
  geometry = pytest "geometry" "tests/test_geometry_engram.py tests/test_geometry_token_map.py";
  # those that need no compiler and no csrc/: the rest is the business of make test
  rows = pytest "rows" "tests/test_rows.py tests/test_rows_store.py tests/test_rows_refusals.py";
  lib =
    if differing == [ ] && lib.attrNames given == lib.attrNames wanted then
      pkgs.runCommand "check-lib" { } "touch $out"
    else
      throw "tests/nix/parity.json and the lib differ in: ${toString differing}";

  # the scripts of this tree; nixpkgs checks those of the apps itself
  shell =
    pkgs.runCommand "check-shell"
      {
        nativeBuildInputs = [ pkgs.shellcheck ];
        src = lib.fileset.toSource {
          root = ../.;
          fileset = lib.fileset.unions [
            ../.ci/run
            ../scripts
          ];
        };
      }
      ''
        cd "$src"
        shellcheck .ci/run scripts/*.sh
        touch "$out"
      '';

  # image-local's packages are listed by hash, so that its digest takes none of them
  image-local-digest = packages.images.image-local.digest;
  inherit (packages.images) image-tp3-recipe;

  # the installed completion, asked as bash asks it
  completion = pkgs.runCommand "check-completion" { } ''
    source ${packages.dsv41}/share/bash-completion/completions/dsv41
    COMP_WORDS=(dsv41 plan --draw m)
    COMP_CWORD=3
    _dsv41
    [ "''${COMPREPLY[*]}" = "memory map" ]
    touch "$out"
  '';

  # every package that is built without network is a check too
  inherit (packages) dsv41 local-env row-store;
}
// import ../tests/nix/sources.nix { inherit pkgs; }
// { inherit (import ../tests/nix/engine.nix { inherit pkgs; }) engine-locks; }
// import ../tests/nix/modules/checks.nix { inherit pkgs; }
