package operatorapi

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
)

// GetScalingHistory returns what this server has seen of the scaling of one of the tenant's groups.
func (c *call) GetScalingHistory(_ context.Context, req *nstancev1.GetScalingHistoryRequest) (
	*nstancev1.GetScalingHistoryResponse, error) {
	if err := groupName("group", req.GetGroup()); err != nil {
		return nil, err
	}
	key := c.key(req.GetGroup())
	if _, ok := c.state().GroupView(key); !ok {
		return nil, errNoGroup(key)
	}
	points, err := c.Journal.Scaling(c, key)
	if err != nil {
		return nil, err
	}
	answer := &nstancev1.GetScalingHistoryResponse{Interval: durationpb.New(localdb.ScalingInterval), LeaderId: c.ID,
		LeaderSince: timestamp(c.state().Since())}
	for _, p := range points {
		point := &nstancev1.ScalingPoint{At: timestamp(p.At), Size: uint32(p.Size), Wanted: uint32(p.Wanted)}
		for _, m := range p.Metrics {
			point.Metrics = append(point.Metrics, &nstancev1.ScalingMetric{Name: m.Name, Value: m.Value,
				Target: m.Target, Wanted: uint32(m.Wanted), Total: m.Total})
		}
		answer.Points = append(answer.Points, point)
	}
	return answer, nil
}
