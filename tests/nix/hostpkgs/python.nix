# Python of the stand-in. Interpreter and third-party distributions are those of a virtual
# environment that lies outside the store: DSV41_SITE names its site-packages, which only `nix ...
# --impure` can see. This is the one impurity of the offline checks; without it everything evaluates
# and nothing of Python builds.
{ lib, mkDerivation }:
let
  site = builtins.getEnv "DSV41_SITE";
  pythonVersion =
    if site == "" then "3.11" else lib.removePrefix "python" (baseNameOf (dirOf site));
  sitePackages = "lib/python${pythonVersion}/site-packages";

  # The named distributions and all that they require, as links into the virtual environment.
  # `locked` (name -> version) refuses any other version and any distribution that it does not list.
  distributions =
    {
      name,
      roots,
      locked ? null,
    }:
    mkDerivation {
      name = "python${pythonVersion}-${name}";
      inherit site sitePackages roots;
      locked = builtins.toJSON locked;
      buildCommand = "python ${./link_site.py}";
    };

  # An environment: the interpreter and its own site-packages, put together like a virtual
  # environment, so that sys.executable, .pth files and child processes behave as in the
  # environments of nixpkgs.
  environment =
    packages:
    mkDerivation {
      name = "python3-${pythonVersion}-env";
      inherit site sitePackages packages;
      buildCommand = ''
        mkdir -p "$out/bin" "$out/$sitePackages"
        cp "$python_home/pyvenv.cfg" "$out"
        ln -s "$host_python" "$out/bin/python"
        ln -s python "$out/bin/python3"
        for package in $packages; do
          for entry in "$package/$sitePackages"/*; do
            [ "$(readlink -f "$out/$sitePackages/''${entry##*/}")" = "$(readlink -f "$entry")" ] ||
              ln -s "$entry" "$out/$sitePackages"
          done
        done
        "$out/bin/python" -c 'import sys; assert sys.prefix == sys.argv[1]' "$out"
      '';
    };

  buildPythonPackage =
    {
      pyproject,
      build-system,
      dependencies ? [ ],
      nativeBuildInputs ? [ ],
      pythonImportsCheck ? [ ],
      ...
    }@attrs:
    assert pyproject;
    mkDerivation (
      removeAttrs attrs [ "build-system" "dependencies" "pyproject" "dontUseCmakeConfigure" ]
      // {
        inherit site sitePackages pythonImportsCheck;
        nativeBuildInputs = nativeBuildInputs ++ build-system;
        propagatedBuildInputs = dependencies;
        installPhase = "python ${./install_project.py}";
      }
    );

  fromSite =
    name:
    distributions {
      inherit name;
      roots = [ name ];
    };

  python3Packages = {
    inherit buildPythonPackage;
    buildPythonApplication = buildPythonPackage;
    toPythonModule = drv: drv;
  }
  # whatever our Nix files name of the Python packages of nixpkgs
  // lib.genAttrs [ "pip" "poetry-core" "pybind11" "rich" "scikit-build-core" "torch" ] fromSite;
  # a program that PyPI ships and the virtual environment holds; else the host's
  tool =
    name:
    mkDerivation {
      inherit name site sitePackages;
      buildCommand = ''
        mkdir -p "$out/bin"
        program=$site/../../../bin/${name}
        [ -x "$program" ] || program=$(command -v ${name})
        ln -s "$program" "$out/bin"
      '';
    };
in
{
  inherit tool;
  python3 = {
    outPath = "/usr";
    meta.mainProgram = "python3";
    inherit pythonVersion sitePackages;
    withPackages = f: environment (f python3Packages);
    pkgs = python3Packages;
    # not in nixpkgs, for the stub of poetry2nix only
    standIn = { inherit distributions environment; };
  };
}
