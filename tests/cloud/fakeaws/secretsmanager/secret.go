package secretsmanager

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) createSecret(c *wire.Call) (any, error) {
	var in struct {
		Name, ClientRequestToken, Description, KmsKeyId string
		ForceOverwriteReplicaSecret                     bool // No effect: there are no replicas.
		Tags                                            []tag
		value
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	x := &secret{name: in.Name, arn: s.newARN(in.Name), description: in.Description, keyID: in.KmsKeyId, created: c.Now,
		changed: c.Now, tags: map[string]string{}}
	keys := tagKeys(in.Tags)
	keys["secretsmanager:Name"] = []string{in.Name}
	if err := c.Authorize("secretsmanager:CreateSecret", x.arn, keys); err != nil {
		return nil, err
	}
	if len(in.Tags) > 0 {
		if err := c.Authorize("secretsmanager:TagResource", x.arn, keys); err != nil {
			return nil, err
		}
	}
	if !nameForm.MatchString(in.Name) {
		return nil,
			fail("ValidationException",
				"Invalid name. Must be a valid name containing alphanumeric characters, or any of the following: "+
					"-/_+=.@!")
	}
	if old := s.lookup(in.Name); old != nil {
		return old.again(in.ClientRequestToken, in.value)
	}
	if err := x.tag(in.Tags); err != nil {
		return nil, err
	}
	out := versionOut{ARN: x.arn, Name: x.name}
	if !in.empty() {
		v, err := x.put(c, in.ClientRequestToken, in.value, nil)
		if err != nil {
			return nil, err
		}
		out.VersionId = v.id
	}
	s.secrets[x.name] = x
	return out, nil
}

// again answers a call of CreateSecret for a secret that already exists. If the call repeats the one that created the
// secret, it succeeds.
func (x *secret) again(token string, v value) (any, error) {
	if !x.deleted.IsZero() {
		return nil,
			fail("InvalidRequestException",
				"You can't create this secret because a secret with this name is already scheduled for deletion.")
	}
	if old := x.version(token); old != nil && old.value.equal(v) {
		return versionOut{ARN: x.arn, Name: x.name, VersionId: token}, nil
	}
	return nil, fail("ResourceExistsException", "The operation failed because the secret %s already exists.", x.name)
}

// Limits of the recovery window in days.
// https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_DeleteSecret.html
const (
	shortestWindow = 7
	longestWindow  = 30
)

func (s *Service) deleteSecret(c *wire.Call) (any, error) {
	var in struct {
		SecretId                   string
		ForceDeleteWithoutRecovery bool
		RecoveryWindowInDays       *int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	days := longestWindow
	if in.RecoveryWindowInDays != nil {
		days = *in.RecoveryWindowInDays
	}
	x, err := s.find(c, in.SecretId, policy.Context{
		"secretsmanager:ForceDeleteWithoutRecovery": {strconv.FormatBool(in.ForceDeleteWithoutRecovery)},
		"secretsmanager:RecoveryWindowInDays":       {strconv.Itoa(days)},
	})
	type answer struct {
		ARN, Name    string
		DeletionDate wire.Time
	}
	switch {
	case in.ForceDeleteWithoutRecovery && in.RecoveryWindowInDays != nil:
		return nil,
			fail("InvalidParameterException",
				"You can't use ForceDeleteWithoutRecovery in conjunction with RecoveryWindowInDays.")
	case err != nil && in.ForceDeleteWithoutRecovery && wire.AsError(err).Code == "ResourceNotFoundException":
		return answer{in.SecretId, in.SecretId, wire.Time{Time: c.Now}}, nil // As AWS answers.
	case err != nil:
		return nil, err
	case in.ForceDeleteWithoutRecovery:
		delete(s.secrets, x.name)
		return answer{x.arn, x.name, wire.Time{Time: c.Now}}, nil
	case days < shortestWindow || days > longestWindow:
		return nil,
			fail("InvalidParameterException",
				"The RecoveryWindowInDays value must be between %d and %d days (inclusive).", shortestWindow,
				longestWindow)
	case !x.deleted.IsZero():
		return nil,
			fail("InvalidRequestException",
				"You can't perform this operation on the secret because it was already scheduled for deletion.")
	}
	x.deleted, x.endsAt = c.Now, c.Now.Add(time.Duration(days)*24*time.Hour)
	return answer{x.arn, x.name, wire.Time{Time: x.endsAt}}, nil
}

type secretJSON struct {
	ARN, Name   string
	Description string `json:",omitempty"`
	KmsKeyId    string `json:",omitempty"`
	Tags        []tag
	CreatedDate wire.Time
	LastChanged wire.Time  `json:"LastChangedDate"`
	DeletedDate *wire.Time `json:",omitempty"`
}

func (x *secret) json() secretJSON {
	out := secretJSON{
		ARN: x.arn, Name: x.name, Description: x.description, KmsKeyId: x.keyID, Tags: x.tagList(),
		CreatedDate: wire.Time{Time: x.created},
		LastChanged: wire.Time{Time: x.changed},
	}
	if !x.deleted.IsZero() {
		out.DeletedDate = &wire.Time{Time: x.deleted}
	}
	return out
}

// stages returns the staging labels by version ID. Versions without a label are left out.
func (x *secret) stages() map[string][]string {
	out := map[string][]string{}
	for _, v := range x.versions {
		if len(v.labels) > 0 {
			out[v.id] = v.labels
		}
	}
	return out
}

func (s *Service) describeSecret(c *wire.Call) (any, error) {
	var in struct{ SecretId string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	x, err := s.find(c, in.SecretId)
	if err != nil {
		return nil, err
	}
	return struct {
		secretJSON
		VersionIdsToStages map[string][]string
	}{x.json(), x.stages()}, nil
}

// filter selects secrets with a field that begins with one of Values. A value after "!" selects the secrets without
// such a field.
// https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_Filter.html
type filter struct {
	Key    string
	Values []string
}

func (f filter) fits(x *secret) (bool, error) {
	var have []string
	switch f.Key {
	case "name":
		have = []string{x.name}
	case "description":
		have = []string{x.description}
	case "tag-key":
		have = slices.Collect(maps.Keys(x.tags))
	case "tag-value":
		have = slices.Collect(maps.Values(x.tags))
	case "all":
		have = slices.Concat([]string{x.name, x.description}, slices.Collect(maps.Keys(x.tags)),
			slices.Collect(maps.Values(x.tags)))
	default:
		return false, fail("InvalidParameterException", "The filter key %q is not valid here", f.Key)
	}
	for _, want := range f.Values {
		want, not := strings.CutPrefix(want, "!")
		if slices.ContainsFunc(have, func(h string) bool { return strings.HasPrefix(h, want) }) != not {
			return true, nil
		}
	}
	return false, nil
}

func (s *Service) listSecrets(c *wire.Call) (any, error) {
	var in struct {
		Filters                      []filter
		IncludePlannedDeletion       bool
		MaxResults                   *int
		NextToken, SortBy, SortOrder string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := c.Authorize("secretsmanager:ListSecrets", "*", nil); err != nil {
		return nil, err
	}
	s.lookup("") // Removes expired secrets.
	found := slices.SortedFunc(maps.Values(s.secrets), func(a, b *secret) int {
		return strings.Compare(a.name, b.name)
	})
	for _, f := range in.Filters {
		var err error
		found = slices.DeleteFunc(found, func(x *secret) bool {
			fits, e := f.fits(x)
			err = cmp.Or(err, e)
			return !fits
		})
		if err != nil {
			return nil, err
		}
	}
	switch in.SortBy {
	case "name":
	case "last-changed-date":
		slices.SortStableFunc(found, func(a, b *secret) int { return a.changed.Compare(b.changed) })
	default:
		slices.SortStableFunc(found, func(a, b *secret) int { return a.created.Compare(b.created) })
	}
	if in.SortOrder == "desc" {
		slices.Reverse(found)
	}
	type entry struct {
		secretJSON
		SecretVersionsToStages map[string][]string
	}
	all := []entry{}
	for _, x := range found {
		if x.deleted.IsZero() || in.IncludePlannedDeletion {
			all = append(all, entry{x.json(), x.stages()})
		}
	}
	page, next, err := page(all, in.MaxResults, in.NextToken)
	return struct {
		SecretList []entry
		NextToken  string `json:",omitempty"`
	}{page, next}, err
}

// maxPage is the maximum page size of all lists.
const maxPage = 100

func page[T any](all []T, size *int, token string) ([]T, string, error) {
	n := maxPage
	if size != nil {
		n = *size
	}
	if n < 1 || n > maxPage {
		return nil, "", fail("InvalidParameterException", "MaxResults must be between 1 and %d", maxPage)
	}
	page, next, err := wire.Page(all, n, token)
	if err != nil {
		return nil, "", fail("InvalidNextTokenException", "The NextToken value is invalid.")
	}
	return page, next, nil
}
