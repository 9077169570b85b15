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

# ctest writes one status per <testcase>: run, fail, notrun or disabled. A run time skip is "notrun" with a
# <skipped> element, a test whose program is missing is "notrun" too; the latter is told by its message.
count() { grep -cE "$1" "$junit" || true; }
total=$(count '<testcase ')
failed=$(count '<testcase .*status="fail"')
unbuilt=$(count '<skipped message="(Unable to find executable|Required Files Missing|Failed to start)')
skipped=$(($(count '<testcase .*status="(notrun|disabled)"') - unbuilt))
failed=$((failed + unbuilt))
passed=$((total - failed - skipped))
# ctest can fail without a failed test, e.g. when it finds none.
if [ "$failed" = 0 ] && { [ "$status" != 0 ] || [ "$total" = 0 ]; }; then
    echo "ctest ended with status $status over $total tests" >&2
    failed=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
