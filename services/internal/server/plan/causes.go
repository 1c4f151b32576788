package plan

// Cause is the reason for a deletion, in one word, for metrics and events.
type Cause string

const (
	CauseNone        Cause = ""
	CauseScaleDown   Cause = "scale_down"
	CauseUnhealthy   Cause = "unhealthy"
	CauseHealthCheck Cause = "health_check"
	// CauseLoadBalancer: a load balancer called the instance unhealthy (rule 59).
	CauseLoadBalancer Cause = "load_balancer"
	// CauseFlapping: the instance recovered, but fails again and again (rules 62 and 63).
	CauseFlapping Cause = "flapping"
	CauseGone     Cause = "gone"
	CauseExpired  Cause = "expired"
	CauseDrift    Cause = "drift"
	CauseNotice   Cause = "notice"
	// CauseRecommendation: the cloud recommends replacing the VM (rule 65).
	CauseRecommendation Cause = "recommendation"
	// CauseMaintenance: the cloud has announced maintenance of the VM (rule 66).
	CauseMaintenance Cause = "maintenance"
	CausePowerOff    Cause = "power_off"
	// CauseReturnToSpot: a spot instance replaces one that was bought on demand (rule 58).
	CauseReturnToSpot Cause = "return_to_spot"
	CauseGroupDeleted Cause = "group_deleted"
	CauseTerminating  Cause = "terminating"
	// CauseUnregistered: the instance's creation failed. Every deletion with this cause counts towards the group's
	// [Backoff].
	CauseUnregistered Cause = "unregistered"
	// CausePreserved: the instance was preserved (rule 67), and the time for that is over.
	CausePreserved Cause = "preserved"
	// CauseNotWoken: the VM of a spare that became a member did not wake (rule 84).
	CauseNotWoken Cause = "not_woken"
	// CauseRequested: an operator or a person asked for the deletion.
	CauseRequested Cause = "requested"
)

// Advised reports whether an instance is replaced because of a notice that does not end its VM yet (rules 65 and 66).
func (c Cause) Advised() bool { return c == CauseRecommendation || c == CauseMaintenance }

// failed reports whether an instance that is deleted for the cause has failed.
func (c Cause) failed() bool {
	switch c {
	case CauseUnregistered, CauseUnhealthy, CauseHealthCheck, CauseLoadBalancer, CauseFlapping:
		return true
	}
	return false
}

// AlertKind is the kind of an error that stays active until it is resolved.
type AlertKind string

const (
	AlertUnhealthyGuard AlertKind = "unhealthy_guard"
	AlertBackoff        AlertKind = "backoff"
	AlertRolloutHalted  AlertKind = "rollout_halted"
	AlertOrphans        AlertKind = "orphans"
	AlertProvider       AlertKind = "provider"
	AlertProviderConfig AlertKind = "provider_config"
	AlertStorage        AlertKind = "storage"
	AlertConfig         AlertKind = "config"
	AlertImages         AlertKind = "images"
	AlertLeaderNetwork  AlertKind = "leader_network"
	AlertLoadBalancers  AlertKind = "load_balancers"
	AlertScaling        AlertKind = "scaling"
	AlertFlaps          AlertKind = "flaps"           // of one instance
	AlertSharedIdentity AlertKind = "shared_identity" // of one instance: two agents use it
	// AlertLateRegistration: a VM of the group has not registered although others usually had by then.
	AlertLateRegistration AlertKind = "late_registration"
)

// AlertKinds lists all kinds, in the order in which the documents list them.
func AlertKinds() []AlertKind {
	return []AlertKind{AlertUnhealthyGuard, AlertBackoff, AlertRolloutHalted, AlertOrphans, AlertProvider,
		AlertProviderConfig, AlertStorage, AlertConfig, AlertImages, AlertLeaderNetwork, AlertLoadBalancers,
		AlertScaling, AlertFlaps, AlertSharedIdentity, AlertLateRegistration}
}
