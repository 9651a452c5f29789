#!/bin/sh
# older_drivers.sh PTX_FOLDER [ARCHITECTURE...]: whether drivers from 525 on (CUDA 12.0) can take the kernels that nvcc has made in PTX_FOLDER.
#   1. Every NAME.oldest.ptx claims PTX 8.0, the version of CUDA 12.0, and the ptxas of CUDA 12.8 reads it: so such a driver compiles it.
#   2. That ptxas makes machine code of two files for each ARCHITECTURE (80 86 89 90 100 120): what a build with ORRERY_PTXAS does with all.
# A whole nvcc 12.8 is neither in Debian's packages nor on PyPI: the wheel has ptxas and libnvvm, without the front end. ORRERY_PTXAS names a
# ptxas that is here; else pip fetches it, once, to PTX_FOLDER/older. Where pip cannot, the script says so and checks nothing.
set -eu
folder=$1
shift
architectures=${*:-80 86 89 90 100 120}
wheel=nvidia-cuda-nvcc-cu12==12.8.93
ptxas=${ORRERY_PTXAS:-$folder/older/nvidia/cuda_nvcc/bin/ptxas}
if [ ! -x "$ptxas" ]; then
  mkdir -p "$folder/older"
  if ! python3 -m pip download --quiet --no-deps --dest "$folder/older" "$wheel" 2>"$folder/older/log"; then
    echo "skipped: pip cannot fetch $wheel: $(tail -1 "$folder/older/log")"
    exit 0
  fi
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("nvidia/cuda_nvcc/bin/ptxas", sys.argv[2])' "$folder"/older/*.whl "$folder/older"
  rm -f "$folder"/older/*.whl
  chmod +x "$ptxas"
fi
"$ptxas" --version | sed -n 's/.*\(release [0-9.]*\).*/ptxas, \1/p'
n=0
for text in "$folder"/*.oldest.ptx; do
  [ -e "$text" ] || { echo "$folder has no PTX"; exit 1; }
  grep -q '^\.version 8\.0$' "$text" || { echo "$text: another version of PTX than 8.0"; exit 1; }
  "$ptxas" -arch=compute_80 "$text" -o /dev/null   # a virtual GPU: it is read and checked, and no code is made
  n=$((n + 1))
done
echo "$n files are PTX 8.0"
for architecture in $architectures; do
  for name in rows kv; do
    "$ptxas" -arch="sm_$architecture" -O3 --warn-on-spills --warning-as-error "$folder/$name.oldest.ptx" -o /dev/null
  done
  echo "machine code for sm_$architecture"
done
