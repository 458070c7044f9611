package otelcacheaside

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/meter"
)

// All measures: each field of each Stats, those aside that are texts. Two rows of one name are one
// metric.

// loaderMeasures are of each loader.
var loaderMeasures = []measure[cacheaside.Stats]{
	{name: "gets", unit: "{key}", about: "Keys that were asked for.", of: func(s *cacheaside.Stats) float64 { return float64(s.Gets) }},
	{name: "hits", unit: "{key}", about: "Keys that memory, and rounds that Redis, has answered.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory")}, of: func(s *cacheaside.Stats) float64 { return float64(s.MemoryHits) }},
	{name: "hits", unit: "{key}", about: "Keys that memory, and rounds that Redis, has answered.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis")}, of: func(s *cacheaside.Stats) float64 { return float64(s.RedisHits) }},
	{name: "hits.null", unit: "{key}", about: "Hits that said that there is no such row.", of: func(s *cacheaside.Stats) float64 { return float64(s.NullHits) }},
	{name: "hits.while_down", unit: "{key}", about: "Reads that memory has answered by what was loaded while Redis was out of reach.", of: func(s *cacheaside.Stats) float64 { return float64(s.HitsWhileDown) }},
	{name: "loads", unit: "{row}", about: "Rows that load functions were asked for.", of: func(s *cacheaside.Stats) float64 { return float64(s.Loads) }},
	{name: "load.calls", unit: "{call}", about: "Calls of load functions.", of: func(s *cacheaside.Stats) float64 { return float64(s.LoadCalls) }},
	{name: "load.errors", unit: "{row}", about: "Rows that could not be loaded.", of: func(s *cacheaside.Stats) float64 { return float64(s.LoadErrors) }},
	{name: "loads.compare", unit: "{row}", about: "Rows that were loaded to compare a copy with them, for a meter or a shadow.", of: func(s *cacheaside.Stats) float64 { return float64(s.CompareLoads) }},
	{name: "loads.left", unit: "{call}", about: "Calls that were left running at LoadTimeout.", of: func(s *cacheaside.Stats) float64 { return float64(s.LoadsLeft) }},
	{name: "loads.unavailable", unit: "{call}", about: "Calls that were not made, to protect the database.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unavailable) }},
	{name: "loads.unlocked", unit: "{call}", about: "Loads without the lock that they should have had.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unlocked) }},
	{name: "loads.unasked", unit: "{row}", about: "Values of batch loads that nobody had asked for.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unasked) }},
	{name: "loads.failed_by_mark", unit: "{key}", about: "Rounds that were not loaded since a load had failed a moment ago.", of: func(s *cacheaside.Stats) float64 { return float64(s.FailedByMark) }},
	{name: "breakers.open", unit: "{loader}", about: "Whether the circuit breaker lets no load through.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.BreakersOpen) }},
	{name: "refreshes", unit: "{key}", about: "Reloads that were begun in the background.", of: func(s *cacheaside.Stats) float64 { return float64(s.BackgroundRefreshes) }},
	{name: "refreshes.early", unit: "{key}", about: "Of them, those of values that were fresh.", of: func(s *cacheaside.Stats) float64 { return float64(s.EarlyRefreshes) }},
	{name: "stale", unit: "{key}", about: "Values that were given out after their TTL.", of: func(s *cacheaside.Stats) float64 { return float64(s.Stale) }},
	{name: "held", unit: "{key}", about: "Loads that were not stored, since their keys were on hold.", of: func(s *cacheaside.Stats) float64 { return float64(s.Held) }},
	{name: "stored_held", unit: "{key}", about: "Values that were stored in the place of a hold.", of: func(s *cacheaside.Stats) float64 { return float64(s.StoredHeld) }},
	{name: "too_large", unit: "{value}", about: "Values that were not stored, since they are too long.", of: func(s *cacheaside.Stats) float64 { return float64(s.TooLarge) }},
	{name: "not_carried", unit: "{value}", about: "Values that were not cached, since JSON would change them.", of: func(s *cacheaside.Stats) float64 { return float64(s.NotCarried) }},
	{name: "too_heavy", unit: "{value}", about: "Values that were not kept in memory, since they take too much of it.", of: func(s *cacheaside.Stats) float64 { return float64(s.TooHeavy) }},
	{name: "filtered", unit: "{key}", about: "Rounds that the filter has refused.", of: func(s *cacheaside.Stats) float64 { return float64(s.Filtered) }},
	{name: "filter.false_positives", unit: "{key}", about: "Rounds that the filter has let through, and that had no row.", of: func(s *cacheaside.Stats) float64 { return float64(s.FalsePositives) }},
	{name: "filter.audits", unit: "{key}", about: "Rounds that the filter has refused, and for which the database was asked all the same.", of: func(s *cacheaside.Stats) float64 { return float64(s.FilterAudits) }},
	{name: "filter.hidden", unit: "{key}", about: "Of those, rounds that had a row.", of: func(s *cacheaside.Stats) float64 { return float64(s.FilterHidden) }},
	{name: "filter.errors", unit: "{call}", about: "Times that the filter has failed.", of: func(s *cacheaside.Stats) float64 { return float64(s.FilterErrors) }},
	{name: "waits", unit: "{key}", about: "Rounds that have waited for the load of another process.", of: func(s *cacheaside.Stats) float64 { return float64(s.Waits) }},
	{name: "refused", unit: "{key}", about: "Loads that were thrown away, since an invalidation came between, or the lease was lost.", of: func(s *cacheaside.Stats) float64 { return float64(s.Refused) }},
	{name: "unvalidated", unit: "{key}", about: "Results that Redis has not confirmed.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unvalidated) }},
	{name: "bypassed", unit: "{key}", about: "Of them, those due to Bypass.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bypassed) }},
	{name: "outdated", unit: "{entry}", about: "Entries in Redis that count no more, as after an InvalidateAll.", of: func(s *cacheaside.Stats) float64 { return float64(s.Outdated) }},
	{name: "undecodable", unit: "{entry}", about: "Entries in Redis that could not be decoded.", of: func(s *cacheaside.Stats) float64 { return float64(s.Undecodable) }},
	{name: "redis.errors", unit: "{command}", about: "Commands to Redis that have failed.", of: func(s *cacheaside.Stats) float64 { return float64(s.RedisErrors) }},
	{name: "redis.write_errors", unit: "{command}", about: "Of them, those that were to store or give up something.", of: func(s *cacheaside.Stats) float64 { return float64(s.WriteErrors) }},
	{name: "redis.down", unit: "{key}", about: "Rounds that did not ask Redis since it was out of reach, or were not answered.", of: func(s *cacheaside.Stats) float64 { return float64(s.RedisDown) }},
	{name: "abandoned", unit: "{key}", about: "Rounds that were stopped since all their callers had left.", of: func(s *cacheaside.Stats) float64 { return float64(s.Abandoned) }},
	{name: "invalidated", unit: "{key}", about: "Keys whose invalidation was acknowledged.", of: func(s *cacheaside.Stats) float64 { return float64(s.Invalidated) }},
	{name: "invalidate.errors", unit: "{key}", about: "Keys whose invalidation has failed.", of: func(s *cacheaside.Stats) float64 { return float64(s.InvalidateErrors) }},
	{name: "shadow.reads", unit: "{key}", about: "Reads that were answered from the database (LoaderOptions.Shadow).", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowReads) }},
	{name: "shadow.misses", unit: "{key}", about: "Of those that were compared, what the caches did not have.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowMisses) }},
	{name: "shadow.compared", unit: "{key}", about: "What they had, and what was compared with the row.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowCompared) }},
	{name: "shadow.stale", unit: "{key}", about: "Of it, what would have been served other than the row was.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowStale) }},
	{name: "shadow.undecided", unit: "{key}", about: "Reads that were to be compared, and were not.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowUndecided) }},
}

// cacheMeasures are of a cache as a whole.
var cacheMeasures = []measure[cacheaside.Stats]{
	{name: "holds.lost", unit: "{key}", about: "Keys whose hold was lost before its end.", of: func(s *cacheaside.Stats) float64 { return float64(s.HoldsLost) }},
	{name: "holds.left", unit: "{key}", about: "Keys that were left on hold until its end.", of: func(s *cacheaside.Stats) float64 { return float64(s.HoldsLeft) }},
	{name: "observer.panics", unit: "{call}", about: "Calls of the Observer that have panicked.", of: func(s *cacheaside.Stats) float64 { return float64(s.ObserverPanics) }},
	{name: "questions", unit: "{question}", about: "Questions of meters that were heard.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Questions) }},
	{name: "questions.unanswered", unit: "{question}", about: "Of them, those that were not answered.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Unanswered) }},
	{name: "redis.out", unit: "{range}", about: "Parts of the keys for which Redis is out of reach.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.RedisOut) }},
	{name: "bus.ranges", unit: "{range}", about: "Parts of the keys that are followed by themselves.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Ranges) }},
	{name: "bus.trusted", unit: "{range}", about: "Of them, those whose values in memory may be served.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Trusted) }},
	{name: "bus.subscribed", unit: "1", about: "Whether this process hears what others invalidate.", gauge: true, of: func(s *cacheaside.Stats) float64 { return truth(s.Bus.Subscribed) }},
	{name: "bus.subscribes", unit: "{subscription}", about: "Subscriptions that were confirmed.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Subscribes) }},
	{name: "bus.disconnects", unit: "{subscription}", about: "Subscriptions that were lost, or could not be made.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Disconnects) }},
	{name: "bus.gaps", unit: "{gap}", about: "Times that messages were missing, and memory was cleared.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Gaps) }},
	{name: "bus.lapses", unit: "{lapse}", about: "Times that memory was not served since nobody could say whether something was missing.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Lapses) }},
	{name: "bus.heard", unit: "{message}", about: "Messages of other processes.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Heard) }},
	{name: "bus.announced", unit: "{message}", about: "Messages of this process.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Announced) }},
	{name: "bus.malformed", unit: "{message}", about: "Messages that could not be read.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Malformed) }},
	{name: "bus.failed_polls", unit: "{poll}", about: "Times that Redis could not be asked what was announced.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.FailedPolls) }},
	{name: "bus.delay", unit: "s", about: "From the announcement of an invalidation until it is heard: about the mean of the last 16.", gauge: true, of: func(s *cacheaside.Stats) float64 { return s.Bus.Delay.Seconds() }},
	{name: "bus.delay.max", unit: "s", about: "The longest since the start.", gauge: true, of: func(s *cacheaside.Stats) float64 { return s.Bus.MaxDelay.Seconds() }},
}

var filterMeasures = []measure[bloom.Stats]{
	{name: "filter.answers", unit: "{key}", about: "What the filter has said.", with: []attribute.KeyValue{attribute.String("cacheaside.answer", "absent")}, of: func(s *bloom.Stats) float64 { return float64(s.Absent) }},
	{name: "filter.answers", unit: "{key}", about: "What the filter has said.", with: []attribute.KeyValue{attribute.String("cacheaside.answer", "present")}, of: func(s *bloom.Stats) float64 { return float64(s.Present) }},
	{name: "filter.answers", unit: "{key}", about: "What the filter has said.", with: []attribute.KeyValue{attribute.String("cacheaside.answer", "unknown")}, of: func(s *bloom.Stats) float64 { return float64(s.Unknown) }},
	{name: "filter.lost", unit: "{key}", about: "Keys of which the filter could not say, since a part of it is gone or was not built.", of: func(s *bloom.Stats) float64 { return float64(s.Lost) }},
	{name: "filter.failed", unit: "{key}", about: "Keys that the filter could not be asked for.", of: func(s *bloom.Stats) float64 { return float64(s.Failed) }},
	{name: "filter.not_found", unit: "{key}", about: "Keys that the filter has let through, and that were not there.", of: func(s *bloom.Stats) float64 { return float64(s.FalsePositives) }},
	{name: "filter.added", unit: "{key}", about: "Keys that were added.", of: func(s *bloom.Stats) float64 { return float64(s.Added) }},
	{name: "filter.add_errors", unit: "{call}", about: "Calls to add keys that have failed.", of: func(s *bloom.Stats) float64 { return float64(s.AddErrors) }},
	{name: "filter.lost_adds", unit: "{segment}", about: "Parts of the filter that an Add has found gone.", of: func(s *bloom.Stats) float64 { return float64(s.LostAdds) }},
	{name: "filter.malformed", unit: "{descriptor}", about: "Times that the descriptor could not be read.", of: func(s *bloom.Stats) float64 { return float64(s.Malformed) }},
	{name: "filter.refused", unit: "{filter}", about: "Rebuilt filters that have not taken their place: they would have hidden rows.", of: func(s *bloom.Stats) float64 { return float64(s.Refused) }},
	{name: "filter.failures", unit: "{failure}", about: "Checks and rebuilds of Maintain that have failed.", of: func(s *bloom.Stats) float64 { return float64(s.Failures) }},
	{name: "filter.hidings", unit: "{key}", about: "Times that the filter was found to refuse a key whose row exists.", of: func(s *bloom.Stats) float64 { return float64(s.Hidden) }},
	{name: "filter.went_back", unit: "{time}", about: "Times that Redis was found in a state from before what it had acknowledged.", of: func(s *bloom.Stats) float64 { return float64(s.WentBack) }},
	{name: "filter.copied", unit: "1", about: "Whether a copy in this process answers.", gauge: true, of: func(s *bloom.Stats) float64 { return truth(s.Copied) }},
	{name: "filter.copy.size", unit: "By", about: "What the copy takes.", gauge: true, of: func(s *bloom.Stats) float64 { return float64(s.CopyBytes) }},
	{name: "filter.copy.lost", unit: "{segment}", about: "Parts of the copy that Redis has lost.", gauge: true, of: func(s *bloom.Stats) float64 { return float64(s.LostCopied) }},
	{name: "filter.copy.too_large", unit: "1", about: "Whether the filter is too large to be copied.", gauge: true, of: func(s *bloom.Stats) float64 { return truth(s.TooLarge) }},
	{name: "filter.copies", unit: "{copy}", about: "Copies that were made.", of: func(s *bloom.Stats) float64 { return float64(s.Copies) }},
	{name: "filter.gaps", unit: "{gap}", about: "Times that something may have been missed.", of: func(s *bloom.Stats) float64 { return float64(s.Gaps) }},
	{name: "filter.heard", unit: "{message}", about: "Announcements of other processes.", of: func(s *bloom.Stats) float64 { return float64(s.Heard) }},
}

var writerMeasures = []measure[consistency.Stats]{
	{name: "writer.updates", unit: "{write}", about: "Writes that were committed.", of: func(s *consistency.Stats) float64 { return float64(s.Updates) }},
	{name: "writer.rolled_back", unit: "{write}", about: "Writes that were rolled back.", of: func(s *consistency.Stats) float64 { return float64(s.RolledBack) }},
	{name: "writer.unknown", unit: "{write}", about: "Writes of which nobody knows whether they were committed.", of: func(s *consistency.Stats) float64 { return float64(s.Unknown) }},
	{name: "writer.holds.refused", unit: "{write}", about: "Writes that were not made since their keys could not be put on hold.", of: func(s *consistency.Stats) float64 { return float64(s.HoldsRefused) }},
	{name: "writer.holds.lost", unit: "{write}", about: "Writes that were not committed since a hold was lost.", of: func(s *consistency.Stats) float64 { return float64(s.HoldsLost) }},
	{name: "writer.not_stored", unit: "{write}", about: "WriteThroughs that have invalidated instead.", of: func(s *consistency.Stats) float64 { return float64(s.NotStored) }},
	{name: "writer.queued", unit: "{key}", about: "Keys that could not be invalidated at once, and are in the queue.", of: func(s *consistency.Stats) float64 { return float64(s.Queued) }},
	{name: "writer.skipped", unit: "{key}", about: "Of them, those for which it was not tried.", of: func(s *consistency.Stats) float64 { return float64(s.Skipped) }},
	{name: "writer.not_queued", unit: "{key}", about: "Keys that could not be put into the queue.", of: func(s *consistency.Stats) float64 { return float64(s.NotQueued) }},
	{name: "writer.removed", unit: "{row}", about: "Rows that were removed from the outbox after their keys had been invalidated.", of: func(s *consistency.Stats) float64 { return float64(s.Removed) }},
	{name: "writer.left", unit: "{row}", about: "Rows that could not be.", of: func(s *consistency.Stats) float64 { return float64(s.Left) }},
}

var relayMeasures = []measure[consistency.RelayStats]{
	{name: "relay.done", unit: "{item}", about: "Items that are done.", of: func(s *consistency.RelayStats) float64 { return float64(s.Done) }},
	{name: "relay.again", unit: "{item}", about: "Items that were done for the first of two times.", of: func(s *consistency.RelayStats) float64 { return float64(s.Again) }},
	{name: "relay.failed", unit: "{attempt}", about: "Attempts that have failed.", of: func(s *consistency.RelayStats) float64 { return float64(s.Failed) }},
	{name: "relay.retried", unit: "{attempt}", about: "Attempts at items that had failed before.", of: func(s *consistency.RelayStats) float64 { return float64(s.Retried) }},
	{name: "relay.not_reloaded", unit: "{key}", about: "Keys that were to be reloaded, and were invalidated.", of: func(s *consistency.RelayStats) float64 { return float64(s.NotReloaded) }},
	{name: "relay.bad", unit: "{attempt}", about: "Attempts at items that are none.", of: func(s *consistency.RelayStats) float64 { return float64(s.Bad) }},
	{name: "relay.unknown", unit: "{attempt}", about: "Attempts at items whose loader the process has not got, and which are for others.", of: func(s *consistency.RelayStats) float64 { return float64(s.Unknown) }},
	{name: "relay.ended", unit: "1", about: "Whether it has ended though nobody has asked it to.", gauge: true, of: func(s *consistency.RelayStats) float64 { return truth(s.Ended) }},
	{name: "relay.queue_errors", unit: "{call}", about: "Calls of the queue that have failed.", of: func(s *consistency.RelayStats) float64 { return float64(s.QueueErrors) }},
	{name: "relay.alerts", unit: "{alert}", about: "Alerts.", of: func(s *consistency.RelayStats) float64 { return float64(s.Alerts) }},
	{name: "relay.panics", unit: "{panic}", about: "Times that its OnAlert or its queue has panicked.", of: func(s *consistency.RelayStats) float64 { return float64(s.Panics) }},
	{name: "relay.out", unit: "1", about: "Whether all that was tried last has failed for want of Redis.", gauge: true, of: func(s *consistency.RelayStats) float64 { return truth(s.Out) }},
	{name: "relay.lag", unit: "s", about: "How long items had been in the queue when they were done: the mean.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.Lag.Seconds() }},
	{name: "relay.lag.max", unit: "s", about: "The longest.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.MaxLag.Seconds() }},
	{name: "relay.depth", unit: "{item}", about: "Items in the queue, of all relays together.", gauge: true, of: func(s *consistency.RelayStats) float64 { return float64(s.Depth.Items) }},
	{name: "relay.due", unit: "{item}", about: "Of them, those that are due.", gauge: true, of: func(s *consistency.RelayStats) float64 { return float64(s.Depth.Due) }},
	{name: "relay.oldest", unit: "s", about: "The age of the oldest.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.Depth.Oldest.Seconds() }},
	{name: "relay.others", unit: "{item}", about: "Items of other namespaces that nobody claims: 1,001 stands for more.", gauge: true, of: func(s *consistency.RelayStats) float64 { return float64(s.Depth.Others) }},
	{name: "relay.depth.age", unit: "s", about: "How long ago that was read.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.DepthAge.Seconds() }},
}

var consumerMeasures = []measure[canal.Stats]{
	{name: "consumer.active", unit: "1", about: "Whether it consumes.", gauge: true, of: func(s *canal.Stats) float64 { return truth(s.Active) }},
	{name: "consumer.batches", unit: "{batch}", about: "Batches that are done.", of: func(s *canal.Stats) float64 { return float64(s.Batches) }},
	{name: "consumer.changes", unit: "{change}", about: "Changes that are done.", of: func(s *canal.Stats) float64 { return float64(s.Changes) }},
	{name: "consumer.handled", unit: "{change}", about: "Changes that a handler has taken.", of: func(s *canal.Stats) float64 { return float64(s.Handled) }},
	{name: "consumer.handler_errors", unit: "{call}", about: "Calls of handlers that have failed.", of: func(s *canal.Stats) float64 { return float64(s.HandlerErrors) }},
	{name: "consumer.misunderstood", unit: "{change}", about: "Changes that could not be understood; their loaders were invalidated as a whole.", of: func(s *canal.Stats) float64 { return float64(s.Misunderstood) }},
	{name: "consumer.malformed", unit: "{message}", about: "Messages that could not be read.", of: func(s *canal.Stats) float64 { return float64(s.Malformed) }},
	{name: "consumer.parked", unit: "{change}", about: "Changes that were parked.", of: func(s *canal.Stats) float64 { return float64(s.Parked) }},
	{name: "consumer.positions_lost", unit: "{loss}", about: "Times that the position was lost.", of: func(s *canal.Stats) float64 { return float64(s.PositionsLost) }},
	{name: "consumer.failures", unit: "{failure}", about: "Failures that are tried again.", of: func(s *canal.Stats) float64 { return float64(s.Failures) }},
	{name: "consumer.alerts", unit: "{alert}", about: "Alerts.", of: func(s *canal.Stats) float64 { return float64(s.Alerts) }},
	{name: "consumer.missing_tables", unit: "{binding}", about: "Bindings whose table the database does not have.", gauge: true, of: func(s *canal.Stats) float64 { return float64(len(s.MissingTables)) }},
	{name: "consumer.no_changes", unit: "{binding}", about: "Bindings of whose table no change has come since the process began.", gauge: true, of: func(s *canal.Stats) float64 { return float64(len(s.NoChanges)) }},
	{name: "consumer.busy", unit: "s", about: "For how long it has been at what everything waits for, as a handler.", gauge: true, of: func(s *canal.Stats) float64 { return s.Busy.Seconds() }},
	{name: "consumer.lag", unit: "s", about: "How far behind the database it is; -1 where it is not known, or another consumes.", gauge: true, of: func(s *canal.Stats) float64 { return lag(s.Lag) }},
}

// meterMeasures are of a meter, lookMeasures and consistencyMeasures of each of its times after the
// writes.
var meterMeasures = []measure[meter.Stats]{
	{name: "meter.writes", unit: "{key}", about: "Writes that the meter was told of.", of: func(s *meter.Stats) float64 { return float64(s.Writes) }},
	{name: "meter.sampled", unit: "{key}", about: "Of them, those that were taken.", of: func(s *meter.Stats) float64 { return float64(s.Sampled) }},
	{name: "meter.unreadable", unit: "{key}", about: "Taken, but of a loader or key that is not known here.", of: func(s *meter.Stats) float64 { return float64(s.Unreadable) }},
	{name: "meter.dropped", unit: "{key}", about: "Taken, but too many at once.", of: func(s *meter.Stats) float64 { return float64(s.Dropped) }},
	{name: "meter.in_flight", unit: "{key}", about: "Writes that are still to be looked at.", gauge: true, of: func(s *meter.Stats) float64 { return float64(s.InFlight) }},
	{name: "meter.questions", unit: "{question}", about: "Questions that were asked.", of: func(s *meter.Stats) float64 { return float64(s.Questions) }},
	{name: "meter.questions.failed", unit: "{question}", about: "Of them, those that Redis has not taken, or whose answers could not be fetched.", of: func(s *meter.Stats) float64 { return float64(s.QuestionsFailed) }},
	{name: "meter.asked", unit: "{process}", about: "Processes that were asked, added up.", of: func(s *meter.Stats) float64 { return float64(s.Asked) }},
	{name: "meter.answered", unit: "{process}", about: "Of them, those that have answered.", of: func(s *meter.Stats) float64 { return float64(s.Answered) }},
	{name: "meter.malformed", unit: "{answer}", about: "Answers that could not be read.", of: func(s *meter.Stats) float64 { return float64(s.Malformed) }},
}

var lookMeasures = []measure[meter.Look]{
	{name: "meter.looks", unit: "{key}", about: "Writes that were looked at, by what was found.", with: []attribute.KeyValue{attribute.String("cacheaside.found", "consistent")}, of: func(s *meter.Look) float64 { return float64(s.Consistent) }},
	{name: "meter.looks", unit: "{key}", about: "Writes that were looked at, by what was found.", with: []attribute.KeyValue{attribute.String("cacheaside.found", "different")}, of: func(s *meter.Look) float64 { return float64(s.Different) }},
	{name: "meter.looks", unit: "{key}", about: "Writes that were looked at, by what was found.", with: []attribute.KeyValue{attribute.String("cacheaside.found", "undecided")}, of: func(s *meter.Look) float64 { return float64(s.Undecided) }},
	{name: "meter.undecided", unit: "{key}", about: "Why nobody can say.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "late")}, of: func(s *meter.Look) float64 { return float64(s.Late) }},
	{name: "meter.undecided", unit: "{key}", about: "Why nobody can say.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "failed")}, of: func(s *meter.Look) float64 { return float64(s.Failed) }},
	{name: "meter.undecided", unit: "{key}", about: "Why nobody can say.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "unanswered")}, of: func(s *meter.Look) float64 { return float64(s.Unanswered) }},
	{name: "meter.undecided", unit: "{key}", about: "Why nobody can say.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "not_known")}, of: func(s *meter.Look) float64 { return float64(s.NotKnown) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "none")}, of: func(s *meter.Look) float64 { return float64(s.Redis.None) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "young")}, of: func(s *meter.Look) float64 { return float64(s.Redis.Young) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "same")}, of: func(s *meter.Look) float64 { return float64(s.Redis.Same) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "different")}, of: func(s *meter.Look) float64 { return float64(s.Redis.Different) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "not_known")}, of: func(s *meter.Look) float64 { return float64(s.Redis.NotKnown) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "none")}, of: func(s *meter.Look) float64 { return float64(s.Memory.None) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "young")}, of: func(s *meter.Look) float64 { return float64(s.Memory.Young) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "same")}, of: func(s *meter.Look) float64 { return float64(s.Memory.Same) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "different")}, of: func(s *meter.Look) float64 { return float64(s.Memory.Different) }},
	{name: "meter.copies", unit: "{copy}", about: "What was found of the keys.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "not_known")}, of: func(s *meter.Look) float64 { return float64(s.Memory.NotKnown) }},
}

var consistencyMeasures = []measure[meter.Consistency]{
	{name: "meter.inconsistent", unit: "1", about: "The share of writes of which a copy was different from the database so long after.", gauge: true, of: func(s *meter.Consistency) float64 { return s.Share }},
	{name: "meter.inconsistent.low", unit: "1", about: "The low end of its interval, with a confidence of 95 %.", gauge: true, of: func(s *meter.Consistency) float64 { return s.Low }},
	{name: "meter.inconsistent.high", unit: "1", about: "The high end.", gauge: true, of: func(s *meter.Consistency) float64 { return s.High }},
	{name: "meter.nines", unit: "1", about: "So many nines of writes are consistent, but for one time in forty.", gauge: true, of: func(s *meter.Consistency) float64 { return s.NinesAtLeast() }},
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// lag is in seconds; -1, which is no duration, where it is not known.
func lag(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Seconds()
}
