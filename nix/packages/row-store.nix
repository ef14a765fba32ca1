# The row store: the C++ core of csrc/ as the Python module dsv41_rows.
{
  lib,
  cmake,
  ninja,
  python3,
}:
let
  inherit (lib.importTOML ../../csrc/pyproject.toml) project;
in
python3.pkgs.buildPythonPackage {
  pname = project.name;
  inherit (project) version;
  pyproject = true;
  src = lib.fileset.toSource {
    root = ../../csrc;
    fileset = ../../csrc;
  };
  build-system = [
    python3.pkgs.pybind11
    python3.pkgs.scikit-build-core
  ];
  nativeBuildInputs = [
    cmake
    ninja
  ];
  # scikit-build-core calls cmake itself
  dontUseCmakeConfigure = true;
  pythonImportsCheck = [ "dsv41_rows" ];
  meta = {
    inherit (project) description;
    license = lib.licenses.asl20;
  };
}
