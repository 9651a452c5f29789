#!/bin/sh
# try_lease.sh ARCHIVE MIB: that the archive of make gpu-lease and the files that git would send are at most MIB together, and that its script
# works on a machine without a driver: each program says that there is none, and the script leaves its table. Elsewhere than it was built.
set -u
archive=$1
bytes=$( { git ls-files -z --cached --others --exclude-standard | xargs -0 stat -c %s 2>/dev/null; stat -c %s "$archive"; } | awk '{ n += $1 } END { print n }')
echo "$(basename "$archive"): $(($(stat -c %s "$archive") >> 20)) MiB; with the tree $((bytes >> 20)) of $2 MiB"
[ "$bytes" -le $(($2 << 20)) ] || { echo "too large" && exit 1; }
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xf "$archive" || exit 1
sh "$folder/lease/join.sh" || exit 1
[ -e /dev/nvidiactl ] && exit 0   # a machine with a driver runs the script itself
missing="this machine has no NVIDIA driver"
for program in gpu_test bench_gpu; do
  timeout 60 "$folder/lease/$program" >"$folder/said" 2>&1 && echo "$program passes without a driver" && exit 1
  grep -q "$missing" "$folder/said" || { echo "$program does not say: $missing" && tail -3 "$folder/said" && exit 1; }
done
"$folder/lease/lease.sh" first "$folder/results" >"$folder/said" 2>&1 && echo "the script passes without a driver" && exit 1
if ! grep -q "^| smoke | failed" "$folder/results/table.md" || ! [ -s "$folder/results/logs.tar.gz" ]; then
  cat "$folder/said"
  exit 1
fi
echo "The script stops without a driver, and says so."
