package lease

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// Links carry messages between the processes of a shard. The methods do not block and may be called concurrently.
type Links interface {
	// Events returns the inputs from the links until ctx ends. It begins with a LinkUp for every open link. After that,
	// messages and changes of links come in the order in which they happen. A LinkDown comes before the next LinkUp of
	// the same process. A LeaderLinkDown comes when a link that Follow opened has ended. The sender in a message is
	// authenticated. If Events is called again, the channel of the earlier call gets no more inputs.
	Events(ctx context.Context) <-chan election.Input
	// Send hands a message to the link with a process. The message is lost if there is no link or its queue is full.
	Send(to election.Peer, m election.Message)
	// Follow opens a link to the holder of a lock, and keeps it open. The lock contains the holder's election address.
	// The link replaces an earlier link, whose queued messages are still sent. With the zero Lock there is no link to a
	// leader.
	Follow(holder record.Lock)
}
