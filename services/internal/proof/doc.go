// Package proof tests the real election with a real S3 server, real processes and real signals. The network between
// them loses, delays and repeats messages. So the package tests the code together with everything below it, where
// package sim tests the code alone. It has tests only.
//
// Invariant: the checks use only external observations on one clock. These are the requests with their beginnings and
// ends, and the moments at which a leader had authority. Nothing is read from the elector's state.
package proof
