package elbv2

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// rule sends some of the requests of an application load balancer's listener elsewhere.
type rule struct {
	arn        string
	created    time.Time
	listener   *listener
	priority   int
	conditions []Condition
	actions    []Action
}

type values struct {
	Values      []string `xml:"Values>member"`
	RegexValues []string `xml:"RegexValues>member"`
}

// Condition says which requests a rule is for.
type Condition struct {
	Field                   string
	Values                  []string `xml:"Values>member"`
	RegexValues             []string `xml:"RegexValues>member"`
	HostHeaderConfig        *values  `xml:",omitempty"`
	PathPatternConfig       *values  `xml:",omitempty"`
	HttpRequestMethodConfig *values  `xml:",omitempty"`
	SourceIpConfig          *values  `xml:",omitempty"`
	HttpHeaderConfig        *struct {
		HttpHeaderName string
		values
	} `xml:",omitempty"`
	QueryStringConfig *struct {
		Values []struct {
			Key   string `xml:",omitempty"`
			Value string
		} `xml:"Values>member"`
	} `xml:",omitempty"`
}

var conditionFields = []string{"host-header", "path-pattern", "http-request-method", "source-ip", "http-header",
	"query-string"}

func (s *Service) ruleOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateRule":        s.createRule,
		"DescribeRules":     s.describeRules,
		"ModifyRule":        s.modifyRule,
		"DeleteRule":        s.deleteRule,
		"SetRulePriorities": s.setRulePriorities,
	}
}

func (s *Service) createRule(c *wire.Call) (any, error) {
	var in struct {
		ListenerArn string
		Priority    int
		Conditions  []Condition
		Actions     []Action
		Tags        []Tag
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	arn := strings.Replace(in.ListenerArn, ":listener/", ":listener-rule/", 1) + "/" + newID()
	if err := s.allowCreate(c, in.ListenerArn, arn, in.Tags, nil); err != nil {
		return nil, err
	}
	l, err := s.listener(in.ListenerArn)
	if err != nil {
		return nil, err
	}
	r := &rule{arn: arn, created: c.Now, listener: l, conditions: in.Conditions, actions: in.Actions}
	if err := s.checkRule(r); err != nil {
		return nil, err
	}
	if err := s.checkPriorities(l, map[*rule]int{r: in.Priority}); err != nil {
		return nil, err
	}
	if err := checkTags(nil, in.Tags); err != nil {
		return nil, err
	}
	r.priority = in.Priority
	s.rules[arn] = r
	s.setTags(arn, in.Tags)
	return rulesAnswer{Rules: []ruleAnswer{describeRule(r)}}, nil
}

func (s *Service) checkRule(r *rule) error {
	if r.listener.balancer.kind != typeApplication {
		return wire.Errorf(400, "UnsupportedProtocol",
			"Rules are not supported for listeners of load balancers of type %s", r.listener.balancer.kind)
	}
	if len(r.conditions) == 0 {
		return invalid("At least one condition must be specified")
	}
	for _, condition := range r.conditions {
		if !slices.Contains(conditionFields, condition.Field) {
			return invalid("Condition field '%s' must be one of '[%s]'", condition.Field,
				strings.Join(conditionFields, ", "))
		}
	}
	return s.checkActions(r.listener, r.actions, groupOfApplication)
}

// checkPriorities checks the priorities that rules of a listener are to have.
func (s *Service) checkPriorities(l *listener, wanted map[*rule]int) error {
	taken := map[int]bool{}
	for _, r := range s.rules {
		if _, ok := wanted[r]; !ok && r.listener == l {
			taken[r.priority] = true
		}
	}
	for _, p := range wanted {
		if p < 1 || p > 50000 {
			return invalid("Rule priority '%d' must be between 1 and 50000", p)
		}
		if taken[p] {
			return wire.Errorf(400, "PriorityInUse", "Priority '%d' is currently in use", p)
		}
		taken[p] = true
	}
	return nil
}

type ruleAnswer struct {
	RuleArn, Priority string
	Conditions        []Condition `xml:"Conditions>member"`
	Actions           []Action    `xml:"Actions>member"`
	IsDefault         bool
}

type rulesAnswer struct {
	Rules      []ruleAnswer `xml:"Rules>member"`
	NextMarker string       `xml:",omitempty"`
}

// describeRule tells a rule; host names and paths, which have an older form, in both.
func describeRule(r *rule) ruleAnswer {
	out := ruleAnswer{RuleArn: r.arn, Priority: strconv.Itoa(r.priority), Conditions: slices.Clone(r.conditions),
		Actions: describeActions(r.actions)}
	for i := range out.Conditions {
		condition := &out.Conditions[i]
		for field, form := range map[string]**values{"host-header": &condition.HostHeaderConfig,
			"path-pattern": &condition.PathPatternConfig} {
			switch {
			case condition.Field != field:
			case *form == nil:
				*form = &values{Values: condition.Values}
			case condition.Values == nil:
				condition.Values = (*form).Values
			}
		}
	}
	return out
}

func (s *Service) describeRules(c *wire.Call) (any, error) {
	var in struct {
		ListenerArn, Marker string
		RuleArns            []string
		PageSize            int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	if (in.ListenerArn == "") == (len(in.RuleArns) == 0) {
		return nil, invalid("You must specify either a listener ARN or rule ARNs")
	}
	var all []ruleAnswer
	for _, arn := range in.RuleArns {
		r, err := s.rule(arn)
		if err != nil {
			return nil, wire.Errorf(400, "RuleNotFound", "One or more rules not found")
		}
		all = append(all, describeRule(r))
	}
	if in.ListenerArn != "" {
		l, err := s.listener(in.ListenerArn)
		if err != nil {
			return nil, err
		}
		rules := inOrder(s.rules, func(r *rule) (time.Time, string) { return time.Unix(int64(r.priority), 0), r.arn })
		for _, r := range rules {
			if r.listener == l {
				all = append(all, describeRule(r))
			}
		}
		all = append(all, ruleAnswer{
			RuleArn: strings.Replace(l.arn, ":listener/", ":listener-rule/", 1) + "/" +
				l.arn[strings.LastIndexByte(l.arn, '/')+1:],
			Priority: "default", Actions: describeActions(l.actions), IsDefault: true,
		})
	}
	var out rulesAnswer
	var err error
	out.Rules, out.NextMarker, err = page(all, in.PageSize, in.Marker)
	return out, err
}

// changeRule finds a rule that the caller may do the call's action on.
func (s *Service) changeRule(c *wire.Call, arn string) (*rule, error) {
	if err := s.allow(c, arn, nil); err != nil {
		return nil, err
	}
	return s.rule(arn)
}

func (s *Service) modifyRule(c *wire.Call) (any, error) {
	var in struct {
		RuleArn    string
		Conditions []Condition
		Actions    []Action
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.changeRule(c, in.RuleArn)
	if err != nil {
		return nil, err
	}
	n := *r
	if len(in.Conditions) > 0 {
		n.conditions = in.Conditions
	}
	if len(in.Actions) > 0 {
		n.actions = in.Actions
	}
	if err := s.checkRule(&n); err != nil {
		return nil, err
	}
	*r = n
	return rulesAnswer{Rules: []ruleAnswer{describeRule(r)}}, nil
}

func (s *Service) deleteRule(c *wire.Call) (any, error) {
	var in struct{ RuleArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.changeRule(c, in.RuleArn)
	if err != nil {
		return nil, err
	}
	delete(s.rules, r.arn)
	delete(s.tags, r.arn)
	return nil, nil
}

func (s *Service) setRulePriorities(c *wire.Call) (any, error) {
	var in struct {
		RulePriorities []struct {
			RuleArn  string
			Priority int
		}
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	wanted := map[*rule]int{}
	var out rulesAnswer
	for _, p := range in.RulePriorities {
		r, err := s.changeRule(c, p.RuleArn)
		if err != nil {
			return nil, err
		}
		wanted[r] = p.Priority
	}
	for r := range wanted {
		if err := s.checkPriorities(r.listener, wanted); err != nil {
			return nil, err
		}
	}
	for r, p := range wanted {
		r.priority = p
		out.Rules = append(out.Rules, describeRule(r))
	}
	return out, nil
}
