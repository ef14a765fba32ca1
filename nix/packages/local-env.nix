# The Python of the local engine: the locked packages of poetry.lock by poetry2nix, torch of
# nixpkgs, dsv41 and dsv41_rows. `groups` are groups of pyproject.toml beside the main one.
{
  lib,
  python3,
  writeTextDir,
  poetry2nix,
  dsv41,
  row-store,
  groups ? [ "local" ],
}:
let
  # poetry2nix overrides every package of nixpkgs' Python set (no checks, locked numpy), so a torch
  # from inside that set is another derivation than the cached one and would be compiled for hours.
  # torch therefore comes from an environment of its own, and like our two packages through a .pth
  # file. Its lines end up on sys.path after the environment's own packages: what the lock holds
  # wins over what torch brings along.
  torch = python3.withPackages (ps: [ ps.torch ]);
  search = writeTextDir "${python3.sitePackages}/dsv41.pth" (
    lib.concatMapStrings (package: "${package}/${python3.sitePackages}\n") [
      dsv41
      row-store
      torch
    ]
  );

  # The pinned poetry2nix parses the tags of every wheel and stops at those that are younger than
  # itself (riscv64, abi3t, pyemscripten), and takes free-threaded wheels (cp314t) for usable ones.
  # It is given the lock without wheels that no system of this flake can use.
  tags = "(py[0-9.py]+|cp[0-9]+)-(none|abi3|cp[0-9]+)-(any|.*manylinux.*_(x86_64|aarch64))";
  isWheel = line: builtins.match ".*\\.whl\".*" line != null;
  usable = line: isWheel line -> builtins.match ".*-${tags}\\.whl\".*" line != null;
  lock = builtins.readFile ../../poetry.lock;
in
poetry2nix.mkPoetryEnv {
  inherit groups;
  checkGroups = [ ];
  python = python3;
  pyproject = ../../pyproject.toml;
  poetrylock = builtins.toFile "poetry.lock" (
    lib.concatStringsSep "\n" (builtins.filter usable (lib.splitString "\n" lock))
  );
  # all locked packages of these groups have wheels, so none needs an override
  preferWheels = true;
  overrides = [ ];
  extraPackages = ps: [ (ps.toPythonModule search) ];
}
