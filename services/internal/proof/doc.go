// Package proof holds the real election against a real S3 server, real processes and real signals, with a network
// between them that loses, delays and repeats: what the simulator shows of the code, this shows of the code with
// everything below it. It has tests only.
//
// Invariant: what is checked is what was seen from outside, on one clock: requests with their beginning and end, and
// the moments at which a leader had authority. Nothing is read from the elector's state.
package proof
