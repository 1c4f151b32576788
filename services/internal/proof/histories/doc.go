// Package histories tests the real election with a real S3 server, real processes and real signals. The network between
// them loses, delays and repeats messages. So the package tests the election together with everything below it, whereas
// package sim tests the election alone. It has tests only.
//
// Invariant: the checks use only external observations, whose times come from one clock. These are the requests with
// their beginnings and ends, and the moments at which a leader had authority. Nothing is read from the elector's state.
package histories
