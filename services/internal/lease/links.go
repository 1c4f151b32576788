package lease

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/election"
)

// Links carry messages between the processes of a shard. The methods do not block and may be called concurrently.
type Links interface {
	// Events yields incoming inputs until ctx ends. First it yields a LinkUp for every open link, and then changes of
	// links and messages in the order in which they happen. A LinkDown comes before the next LinkUp of the same
	// process. A LeaderLinkDown follows the end of a link that Follow opened. The sender that a message names is
	// authenticated. A later call of Events ends the events of an earlier call.
	Events(ctx context.Context) <-chan election.Input
	// Send hands a message to the link with a process. The message is lost if there is no link or its queue is full.
	Send(to election.Peer, m election.Message)
	// Follow keeps a link to the holder of a lock, at the lock's election address. It replaces an earlier link, whose
	// queued messages are still sent. With the zero Lock there is no link to a leader.
	Follow(holder record.Lock)
}
