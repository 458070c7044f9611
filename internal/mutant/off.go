//go:build !(mutant_second_check || mutant_replace_compare || mutant_claim_outlives || mutant_claim_once || mutant_fill_compare || mutant_fill_absent || mutant_fill_claim || mutant_lease_retried || mutant_token_sent_twice || mutant_no_bump || mutant_bump_first || mutant_memory_key || mutant_memory_generation || mutant_generation_late || mutant_late_generation || mutant_memory_life || mutant_join_running || mutant_leader_cancels || mutant_abandoned_runs || mutant_impatient || mutant_no_release || mutant_no_error_marker || mutant_no_renewal || mutant_return_refused || mutant_panic_escapes || mutant_process_gate || mutant_caller_waits || mutant_load_unbounded || mutant_tag_unescaped || mutant_late_refresh || mutant_close_races_hits || mutant_token_per_process || mutant_long_key_unchecked || mutant_lone_waits || mutant_wait_first || mutant_no_parting || mutant_silence_is_absence || mutant_unpack_unbounded)

package mutant

// Active is the name of the guard that this build lacks: none.
const Active = ""
