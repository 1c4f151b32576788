// Package browsertest tests the page of nstance-admin serve in headless Chromium. The page shows real servers, or large
// shards with state in memory. scripts/test.sh web builds the programs that the tests need, and runs the tests with
// -bin, -chromium and -axe. Without these flags, a test only logs that they are missing.
package browsertest
