// Package mutant names the guards of the library's promises that a test build can take out.
//
// In a build with the tag mutants, Active is the guard that the environment names; in any other build, so in every release, it is the constant "",
// so the comparisons cost nothing and the mutated branches are not compiled in. `make mutants` takes out one after the other and shows
// that the test named for it in list.txt fails.
package mutant

// The guards. list.txt says what each is and which test sees it missing.
const (
	SecondCheck      = "second_check"
	ReplaceCompare   = "replace_compare"
	ClaimOutlives    = "claim_outlives"
	ClaimOnce        = "claim_once"
	FillCompare      = "fill_compare"
	FillAbsent       = "fill_absent"
	FillClaim        = "fill_claim"
	LeaseRetried     = "lease_retried"
	TokenSentTwice   = "token_sent_twice"
	NoBump           = "no_bump"
	BumpFirst        = "bump_first"
	MemoryKey        = "memory_key"
	MemoryGeneration = "memory_generation"
	GenerationLate   = "generation_late"
	LateGeneration   = "late_generation"
	MemoryLife       = "memory_life"
	JoinRunning      = "join_running"
	LeaderCancels    = "leader_cancels"
	AbandonedRuns    = "abandoned_runs"
	Impatient        = "impatient"
	NoRelease        = "no_release"
	NoErrorMarker    = "no_error_marker"
	NoRenewal        = "no_renewal"
	ReturnRefused    = "return_refused"
	PanicEscapes     = "panic_escapes"
	ProcessGate      = "process_gate"
	CallerWaits      = "caller_waits"
	LoadUnbounded    = "load_unbounded"
	TagUnescaped     = "tag_unescaped"
	LateRefresh      = "late_refresh"
	CloseRacesHits   = "close_races_hits"
	TokenPerProcess  = "token_per_process"
	LongKeyUnchecked = "long_key_unchecked"
	LoneWaits        = "lone_waits"
	WaitFirst        = "wait_first"
	SliceShared      = "slice_shared"
	ClusterShares    = "cluster_shares"
	NoParting        = "no_parting"
	SilenceIsAbsence = "silence_is_absence"
	UnpackUnbounded  = "unpack_unbounded"
)
