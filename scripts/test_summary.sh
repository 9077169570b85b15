#!/usr/bin/env bash
# Prints the closing line of a ctest run from its JUnit file and exits non-zero unless all is well.
#   scripts/test_summary.sh RESULTS.xml [CTEST_EXIT_STATUS]
# A missing file, no test at all, a failure or a failed ctest all make the run fail.
set -euo pipefail
junit="${1:?usage: scripts/test_summary.sh RESULTS.xml [CTEST_EXIT_STATUS]}"
status="${2:-0}"
if [ ! -f "$junit" ]; then
    echo "no test results in $junit" >&2
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi

# A <testcase> has the status run, fail, notrun or disabled. What skips itself is "notrun" like a test whose program
# is missing; the message of its <skipped> element tells them apart. Whatever neither ran nor skipped has failed.
count() { grep -cE "$1" "$junit" || true; }
total=$(count '<testcase ')
passed=$(count '<testcase .*status="run"')
skipped=$(($(count '<testcase .*status="disabled"') + $(count '<skipped message="SKIP_')))
failed=$((total - passed - skipped))
# Why each skipped test skipped itself: GoogleTest prints "FILE:LINE: Skipped" and then the reason.
awk '/<testcase name="/ { name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name); said = 0; reason = 0 }
     /<skipped message="SKIP_/ { skips = 1 }
     reason && !said { print "skipped: " name ": " $0; said = 1 }
     { reason = skips && /: Skipped$/ }
     /<\/testcase>/ { if (skips && !said) print "skipped: " name; skips = 0; reason = 0 }' "$junit"
# ctest can fail without a failed test, e.g. when it finds none.
if [ "$failed" = 0 ] && { [ "$status" != 0 ] || [ "$total" = 0 ]; }; then
    echo "ctest ended with status $status over $total tests" >&2
    failed=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
