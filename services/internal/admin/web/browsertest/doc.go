// Package browsertest shows the page of nstance-admin serve in headless Chromium, in front of real servers and in front
// of large shards with state in memory. It contains tests only. scripts/test.sh web builds what they need and runs them
// with -bin, -chromium and -axe. Without these flags a test only logs that they are missing.
package browsertest
