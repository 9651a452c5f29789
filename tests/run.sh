#!/bin/sh
# run.sh BUILD JOBS [CTEST_OPTIONS...]: runs every test of a build folder, prints ctest's closing summary, and as the last
# line `N passed, N failed` (`, N skipped`).
#
# What is counted are GoogleTest's cases, from the report that each program writes, and every other test (a script, a
# replayed corpus) as one.  A program that fails without a failed case in its report - it crashed, leaked, ran out of
# time - counts as one failure more.  The exit status is 0 only if nothing failed.
set -u
build=$(cd "$1" && pwd) || exit 2
jobs=$2
shift 2
reports=$build/test-reports
rm -rf "$reports"
mkdir -p "$reports" || exit 2

# Two for a processor: tests of links wait more than half of their time.
GTEST_OUTPUT="xml:$reports/" GTEST_COLOR=no \
  ctest --test-dir "$build" --output-on-failure --no-tests=error -j"$((2 * jobs))" --output-junit "$reports/ctest.junit" "$@" \
  >"$reports/ctest.log" 2>&1
status=$?
# Everything that failing tests said, and the closing summary.
if [ $status -eq 0 ]; then
  sed -n '/^[0-9]*% tests passed/,$p' "$reports/ctest.log"
else
  cat "$reports/ctest.log"
  sed -n 's/^\[  FAILED  \] \(.* ([0-9]* ms)\)$/failed: \1/p' "$reports/ctest.log"  # close to the end, where a log that was cut still has it
fi
[ -s "$reports/ctest.junit" ] || { echo "0 passed, 1 failed"; exit 1; }

awk -v reports="$reports" -v status="$status" '
  function attribute(name,   value) {
    if (!match($0, " " name "=\"[^\"]*\"")) return ""
    value = substr($0, RSTART, RLENGTH)
    gsub(/^[^"]*"|"$/, "", value)
    return value
  }
  # The cases of one GoogleTest report; returns whether there is one.
  function count_cases(program,   file, found) {
    file = reports "/" program ".xml"
    cases_failed = 0
    while ((getline <file) > 0) {
      if ($0 !~ /<testsuite /) continue
      found = 1
      n_failed = attribute("failures") + attribute("errors")
      n_skipped = attribute("skipped") + attribute("disabled")
      cases_failed += n_failed
      failed += n_failed
      skipped += n_skipped
      passed += attribute("tests") - n_failed - n_skipped
    }
    close(file)
    return found
  }
  /<testcase / {
    line = $0
    program = attribute("name")
    result = attribute("status")
    if (count_cases(program)) {
      if (result == "fail" && cases_failed == 0) failed++
    } else if (result == "run") passed++
    else if (result == "notrun" || result == "disabled") skipped++
    else failed++
  }
  END {
    if (status != 0 && failed == 0) failed = 1
    printf "%d passed, %d failed", passed, failed
    if (skipped > 0) printf ", %d skipped", skipped
    printf "\n"
    exit failed > 0
  }' "$reports/ctest.junit"
