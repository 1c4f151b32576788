// Package notleader makes and reads the answer of a server that does not lead its shard: the code Unavailable with a
// NotLeader detail, which names the leader if it is known.
package notleader

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Error returns the answer of a server that does not lead the shard.
func Error(message string, leader *nstancev1.NotLeader) error {
	answer := status.New(codes.Unavailable, message)
	if detailed, err := answer.WithDetails(leader); err == nil {
		answer = detailed
	}
	return answer.Err()
}

// FromError returns the NotLeader detail of a call's error, or nil if the error has none. The getters of a nil detail
// return "".
func FromError(err error) *nstancev1.NotLeader {
	for _, detail := range status.Convert(err).Details() {
		if notLeader, ok := detail.(*nstancev1.NotLeader); ok {
			return notLeader
		}
	}
	return nil
}
