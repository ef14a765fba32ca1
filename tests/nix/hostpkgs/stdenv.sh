# One build of the stand-in: the phases that our package functions use, in the order of nixpkgs.
set -eu -o pipefail
export PATH=/usr/local/bin:/usr/bin:/bin HOME=$PWD TMPDIR=$PWD LC_ALL=C.UTF-8
export SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 PYTHONPATH=

inputs="${nativeBuildInputs:-} ${buildInputs:-} ${propagatedBuildInputs:-}"
if [ -n "${sitePackages:-}" ]; then
  if [ -z "$site" ]; then
    echo "Python comes from a virtual environment: set DSV41_SITE to its site-packages, pass --impure" >&2
    exit 1
  fi
  # an empty environment on the same interpreter, so that a build sees only the inputs that it
  # declares
  host_python=$(readlink -f "$site/../../../bin/python") python_home=$PWD/.python
  export host_python
  mkdir -p "$python_home/bin"
  ln -s "$host_python" "$python_home/bin/python"
  ln -s python "$python_home/bin/python3"
  printf 'home = %s\ninclude-system-site-packages = false\n' "$(dirname "$host_python")" \
    > "$python_home/pyvenv.cfg"
  PATH=$python_home/bin:$PATH
  for input in $inputs; do
    if [ -d "$input/$sitePackages" ]; then PYTHONPATH+=${PYTHONPATH:+:}$input/$sitePackages; fi
  done
fi

if [ -n "${buildCommand:-}" ]; then
  eval "$buildCommand"
  exit
fi
cp -r --no-preserve=mode,ownership,timestamps "$src" source
cd source
for patch in ${patches:-}; do patch --strip=1 --input="$patch"; done
eval "${postPatch:-}"
eval "${buildPhase:-}"
eval "$installPhase"
eval "${postInstall:-}"
[ -z "${doInstallCheck:-}" ] || eval "$installCheckPhase"
