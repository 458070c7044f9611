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

// The tables below have a metric for each field of each Stats, except texts. Rows with the same
// name are one metric with different attributes. Booleans have the unit {boolean}, because the
// Prometheus exporter appends _ratio to the name of a gauge with the unit 1.

// loaderMeasures are collected for each loader.
var loaderMeasures = []measure[cacheaside.Stats]{
	{name: "gets", unit: "{key}", about: "Keys read.", of: func(s *cacheaside.Stats) float64 { return float64(s.Gets) }},
	{name: "hits", unit: "{key}", about: "Keys found in this tier. For Redis, callers that share a lookup count once.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory")}, of: func(s *cacheaside.Stats) float64 { return float64(s.MemoryHits) }},
	{name: "hits", unit: "{key}", about: "Keys found in this tier. For Redis, callers that share a lookup count once.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis")}, of: func(s *cacheaside.Stats) float64 { return float64(s.RedisHits) }},
	{name: "hits.null", unit: "{key}", about: "Hits of a cached absence.", of: func(s *cacheaside.Stats) float64 { return float64(s.NullHits) }},
	{name: "hits.while_down", unit: "{key}", about: "Reads served from memory by a value that was loaded while Redis was down.", of: func(s *cacheaside.Stats) float64 { return float64(s.HitsWhileDown) }},
	{name: "loads", unit: "{row}", about: "Rows requested from load functions.", of: func(s *cacheaside.Stats) float64 { return float64(s.Loads) }},
	{name: "load.calls", unit: "{call}", about: "Calls of load functions.", of: func(s *cacheaside.Stats) float64 { return float64(s.LoadCalls) }},
	{name: "load.errors", unit: "{row}", about: "Rows that could not be loaded.", of: func(s *cacheaside.Stats) float64 { return float64(s.LoadErrors) }},
	{name: "loads.compare", unit: "{row}", about: "Rows loaded for a comparison with a copy, by a meter or a shadow.", of: func(s *cacheaside.Stats) float64 { return float64(s.CompareLoads) }},
	{name: "loads.left", unit: "{call}", about: "Calls of load functions that still ran at LoadTimeout.", of: func(s *cacheaside.Stats) float64 { return float64(s.LoadsLeft) }},
	{name: "loads.unavailable", unit: "{call}", about: "Loads refused by a limit or a circuit breaker.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unavailable) }},
	{name: "loads.unlocked", unit: "{call}", about: "Loads that ran without their lock.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unlocked) }},
	{name: "loads.unasked", unit: "{row}", about: "Values that a batch load function returned for keys it was not given.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unasked) }},
	{name: "loads.failed_by_mark", unit: "{key}", about: "Lookups not loaded because a load of the key had just failed.", of: func(s *cacheaside.Stats) float64 { return float64(s.FailedByMark) }},
	{name: "breakers.open", unit: "{loader}", about: "1 if the loader's circuit breaker is open.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.BreakersOpen) }},
	{name: "refreshes", unit: "{key}", about: "Reloads started in the background.", of: func(s *cacheaside.Stats) float64 { return float64(s.BackgroundRefreshes) }},
	{name: "refreshes.early", unit: "{key}", about: "Reloads started in the background before the value expired.", of: func(s *cacheaside.Stats) float64 { return float64(s.EarlyRefreshes) }},
	{name: "stale", unit: "{key}", about: "Stale values returned after their TTL.", of: func(s *cacheaside.Stats) float64 { return float64(s.Stale) }},
	{name: "held", unit: "{key}", about: "Loaded values not stored because their keys were on hold.", of: func(s *cacheaside.Stats) float64 { return float64(s.Held) }},
	{name: "stored_held", unit: "{key}", about: "Values stored in place of a hold.", of: func(s *cacheaside.Stats) float64 { return float64(s.StoredHeld) }},
	{name: "too_large", unit: "{value}", about: "Values not stored because they are too long.", of: func(s *cacheaside.Stats) float64 { return float64(s.TooLarge) }},
	{name: "not_carried", unit: "{value}", about: "Values not cached because JSON would change them.", of: func(s *cacheaside.Stats) float64 { return float64(s.NotCarried) }},
	{name: "too_heavy", unit: "{value}", about: "Values not kept in memory because they take too much of it.", of: func(s *cacheaside.Stats) float64 { return float64(s.TooHeavy) }},
	{name: "many_groups", unit: "{value}", about: "Values that belong to all groups, because they have too many.", of: func(s *cacheaside.Stats) float64 { return float64(s.ManyGroups) }},
	{name: "filtered", unit: "{key}", about: "Lookups refused by the filter.", of: func(s *cacheaside.Stats) float64 { return float64(s.Filtered) }},
	{name: "filter.false_positives", unit: "{key}", about: "Lookups that passed the filter and found no row.", of: func(s *cacheaside.Stats) float64 { return float64(s.FalsePositives) }},
	{name: "filter.audits", unit: "{key}", about: "Refused lookups that were checked in the database.", of: func(s *cacheaside.Stats) float64 { return float64(s.FilterAudits) }},
	{name: "filter.hidden", unit: "{key}", about: "Audits that found a row.", of: func(s *cacheaside.Stats) float64 { return float64(s.FilterHidden) }},
	{name: "filter.errors", unit: "{call}", about: "Failed calls of the filter.", of: func(s *cacheaside.Stats) float64 { return float64(s.FilterErrors) }},
	{name: "waits", unit: "{key}", about: "Lookups that waited for the load of another process.", of: func(s *cacheaside.Stats) float64 { return float64(s.Waits) }},
	{name: "refused", unit: "{key}", about: "Loaded values discarded because of an invalidation during the load, or a lost lease.", of: func(s *cacheaside.Stats) float64 { return float64(s.Refused) }},
	{name: "unvalidated", unit: "{key}", about: "Results that Redis did not confirm.", of: func(s *cacheaside.Stats) float64 { return float64(s.Unvalidated) }},
	{name: "bypassed", unit: "{key}", about: "Results that Redis did not confirm because of Bypass.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bypassed) }},
	{name: "outdated", unit: "{entry}", about: "Entries in Redis that an InvalidateAll or InvalidateGroup has ended, or that are too old for the options of this loader.", of: func(s *cacheaside.Stats) float64 { return float64(s.Outdated) }},
	{name: "undecodable", unit: "{entry}", about: "Entries in Redis that could not be decoded.", of: func(s *cacheaside.Stats) float64 { return float64(s.Undecodable) }},
	{name: "redis.errors", unit: "{command}", about: "Failed commands to Redis.", of: func(s *cacheaside.Stats) float64 { return float64(s.RedisErrors) }},
	{name: "redis.write_errors", unit: "{command}", about: "Failed commands to Redis that store or release something.", of: func(s *cacheaside.Stats) float64 { return float64(s.WriteErrors) }},
	{name: "redis.down", unit: "{key}", about: "Lookups made without Redis because it was down or did not reply.", of: func(s *cacheaside.Stats) float64 { return float64(s.RedisDown) }},
	{name: "abandoned", unit: "{key}", about: "Lookups cancelled because all their callers had left.", of: func(s *cacheaside.Stats) float64 { return float64(s.Abandoned) }},
	{name: "invalidated", unit: "{key}", about: "Keys whose invalidation Redis has acknowledged.", of: func(s *cacheaside.Stats) float64 { return float64(s.Invalidated) }},
	{name: "invalidate.errors", unit: "{key}", about: "Keys whose invalidation has failed.", of: func(s *cacheaside.Stats) float64 { return float64(s.InvalidateErrors) }},
	{name: "shadow.reads", unit: "{key}", about: "Reads served from the database (LoaderOptions.Shadow).", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowReads) }},
	{name: "shadow.misses", unit: "{key}", about: "Shadowed reads that the cache could not serve.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowMisses) }},
	{name: "shadow.compared", unit: "{key}", about: "Shadowed hits that were compared with the row.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowCompared) }},
	{name: "shadow.stale", unit: "{key}", about: "Shadowed hits that differed from the row.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowStale) }},
	{name: "shadow.undecided", unit: "{key}", about: "Shadowed reads that could not be compared.", of: func(s *cacheaside.Stats) float64 { return float64(s.ShadowUndecided) }},
}

// cacheMeasures are collected for the whole cache.
var cacheMeasures = []measure[cacheaside.Stats]{
	{name: "holds.lost", unit: "{key}", about: "Keys whose hold was lost too early.", of: func(s *cacheaside.Stats) float64 { return float64(s.HoldsLost) }},
	{name: "holds.left", unit: "{key}", about: "Keys left on hold until the hold expires.", of: func(s *cacheaside.Stats) float64 { return float64(s.HoldsLeft) }},
	{name: "observer.panics", unit: "{call}", about: "Calls of the Observer that panicked.", of: func(s *cacheaside.Stats) float64 { return float64(s.ObserverPanics) }},
	{name: "questions", unit: "{question}", about: "Questions received from meters.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Questions) }},
	{name: "questions.unanswered", unit: "{question}", about: "Questions from meters without a reply by this process.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Unanswered) }},
	{name: "redis.out", unit: "{range}", about: "Ranges of keys for which Redis is down.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.RedisOut) }},
	{name: "bus.ranges", unit: "{range}", about: "Ranges of keys whose announcements are numbered separately.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Ranges) }},
	{name: "bus.trusted", unit: "{range}", about: "Ranges of keys that may be served from memory.", gauge: true, of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Trusted) }},
	{name: "bus.subscribed", unit: "{boolean}", about: "1 if this process is subscribed to invalidations.", gauge: true, of: func(s *cacheaside.Stats) float64 { return truth(s.Bus.Subscribed) }},
	{name: "bus.subscribes", unit: "{subscription}", about: "Confirmed subscriptions.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Subscribes) }},
	{name: "bus.disconnects", unit: "{subscription}", about: "Subscriptions that were lost or could not be made.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Disconnects) }},
	{name: "bus.gaps", unit: "{gap}", about: "Times that announcements were missing and memory was cleared.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Gaps) }},
	{name: "bus.lapses", unit: "{lapse}", about: "Times that memory was not served because it was unknown whether announcements were missing.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Lapses) }},
	{name: "bus.received", unit: "{message}", about: "Messages received from other processes.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Received) }},
	{name: "bus.announced", unit: "{message}", about: "Messages published by this process.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Announced) }},
	{name: "bus.malformed", unit: "{message}", about: "Messages that could not be read.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.Malformed) }},
	{name: "bus.failed_polls", unit: "{poll}", about: "Failed polls for the latest announcement.", of: func(s *cacheaside.Stats) float64 { return float64(s.Bus.FailedPolls) }},
	{name: "bus.delay", unit: "s", about: "Time from the announcement of an invalidation until it is received: about the mean of the last 16.", gauge: true, of: func(s *cacheaside.Stats) float64 { return s.Bus.Delay.Seconds() }},
	{name: "bus.delay.max", unit: "s", about: "The longest such time since the start.", gauge: true, of: func(s *cacheaside.Stats) float64 { return s.Bus.MaxDelay.Seconds() }},
}

var filterMeasures = []measure[bloom.Stats]{
	{name: "filter.answers", unit: "{key}", about: "Results of the filter.", with: []attribute.KeyValue{attribute.String("cacheaside.answer", "absent")}, of: func(s *bloom.Stats) float64 { return float64(s.Absent) }},
	{name: "filter.answers", unit: "{key}", about: "Results of the filter.", with: []attribute.KeyValue{attribute.String("cacheaside.answer", "present")}, of: func(s *bloom.Stats) float64 { return float64(s.Present) }},
	{name: "filter.answers", unit: "{key}", about: "Results of the filter.", with: []attribute.KeyValue{attribute.String("cacheaside.answer", "unknown")}, of: func(s *bloom.Stats) float64 { return float64(s.Unknown) }},
	{name: "filter.lost", unit: "{key}", about: "Keys without a result because a part of the filter is missing or was not built.", of: func(s *bloom.Stats) float64 { return float64(s.Lost) }},
	{name: "filter.failed", unit: "{key}", about: "Keys without a result because the filter could not be read.", of: func(s *bloom.Stats) float64 { return float64(s.Failed) }},
	{name: "filter.not_found", unit: "{key}", about: "Keys that passed the filter and do not exist.", of: func(s *bloom.Stats) float64 { return float64(s.FalsePositives) }},
	{name: "filter.added", unit: "{key}", about: "Keys added.", of: func(s *bloom.Stats) float64 { return float64(s.Added) }},
	{name: "filter.add_errors", unit: "{call}", about: "Failed calls that add keys.", of: func(s *bloom.Stats) float64 { return float64(s.AddErrors) }},
	{name: "filter.lost_adds", unit: "{segment}", about: "Parts of the filter that were missing when keys were added.", of: func(s *bloom.Stats) float64 { return float64(s.LostAdds) }},
	{name: "filter.malformed", unit: "{descriptor}", about: "Times that the descriptor could not be read.", of: func(s *bloom.Stats) float64 { return float64(s.Malformed) }},
	{name: "filter.rejected", unit: "{filter}", about: "Rebuilt filters that were rejected: they had too few keys.",
		of: func(s *bloom.Stats) float64 { return float64(s.Rejected) }},
	{name: "filter.failures", unit: "{failure}", about: "Failed checks and rebuilds of Maintain.", of: func(s *bloom.Stats) float64 { return float64(s.Failures) }},
	{name: "filter.hidings", unit: "{key}", about: "Times that the filter refused a key whose row exists.", of: func(s *bloom.Stats) float64 { return float64(s.Hidden) }},
	{name: "filter.rolled_back", unit: "{time}", about: "Times that Redis had lost acknowledged writes.", of: func(s *bloom.Stats) float64 { return float64(s.RolledBack) }},
	{name: "filter.copied", unit: "{boolean}", about: "1 if the copy in this process is in use.", gauge: true, of: func(s *bloom.Stats) float64 { return truth(s.Copied) }},
	{name: "filter.copy.size", unit: "By", about: "Size of the copy.", gauge: true, of: func(s *bloom.Stats) float64 { return float64(s.CopyBytes) }},
	{name: "filter.copy.lost", unit: "{segment}", about: "Parts of the copy that Redis has lost.", gauge: true, of: func(s *bloom.Stats) float64 { return float64(s.LostCopied) }},
	{name: "filter.copy.too_large", unit: "{boolean}", about: "1 if the filter is too large to be copied.", gauge: true, of: func(s *bloom.Stats) float64 { return truth(s.TooLarge) }},
	{name: "filter.copies", unit: "{copy}", about: "Copies made.", of: func(s *bloom.Stats) float64 { return float64(s.Copies) }},
	{name: "filter.gaps", unit: "{gap}", about: "Times that announcements may have been missed.", of: func(s *bloom.Stats) float64 { return float64(s.Gaps) }},
	{name: "filter.received", unit: "{message}", about: "Announcements received from other processes.", of: func(s *bloom.Stats) float64 { return float64(s.Received) }},
}

var writerMeasures = []measure[consistency.Stats]{
	{name: "writer.updates", unit: "{write}", about: "Committed writes.", of: func(s *consistency.Stats) float64 { return float64(s.Updates) }},
	{name: "writer.rolled_back", unit: "{write}", about: "Writes that were rolled back.", of: func(s *consistency.Stats) float64 { return float64(s.RolledBack) }},
	{name: "writer.unknown", unit: "{write}", about: "Writes whose commit has an unknown outcome.", of: func(s *consistency.Stats) float64 { return float64(s.Unknown) }},
	{name: "writer.holds.refused", unit: "{write}", about: "Writes not made because their keys could not be put on hold.", of: func(s *consistency.Stats) float64 { return float64(s.HoldsRefused) }},
	{name: "writer.holds.lost", unit: "{write}", about: "Writes not committed because a hold was lost.", of: func(s *consistency.Stats) float64 { return float64(s.HoldsLost) }},
	{name: "writer.not_stored", unit: "{write}", about: "Calls of WriteThrough that invalidated instead.", of: func(s *consistency.Stats) float64 { return float64(s.NotStored) }},
	{name: "writer.queued", unit: "{key}", about: "Keys that were queued because their invalidation failed.", of: func(s *consistency.Stats) float64 { return float64(s.Queued) }},
	{name: "writer.skipped", unit: "{key}", about: "Keys that were queued without a trip to Redis.", of: func(s *consistency.Stats) float64 { return float64(s.Skipped) }},
	{name: "writer.not_queued", unit: "{key}", about: "Keys that could not be queued.", of: func(s *consistency.Stats) float64 { return float64(s.NotQueued) }},
	{name: "writer.removed", unit: "{row}", about: "Rows of the outbox deleted after their keys had been invalidated.", of: func(s *consistency.Stats) float64 { return float64(s.Removed) }},
	{name: "writer.not_removed", unit: "{row}", about: "Rows of the outbox that could not be deleted.", of: func(s *consistency.Stats) float64 { return float64(s.NotRemoved) }},
}

var relayMeasures = []measure[consistency.RelayStats]{
	{name: "relay.done", unit: "{item}", about: "Completed items.", of: func(s *consistency.RelayStats) float64 { return float64(s.Done) }},
	{name: "relay.again", unit: "{item}", about: "Items completed for the first of two times.", of: func(s *consistency.RelayStats) float64 { return float64(s.Again) }},
	{name: "relay.failed", unit: "{attempt}", about: "Failed attempts.", of: func(s *consistency.RelayStats) float64 { return float64(s.Failed) }},
	{name: "relay.retried", unit: "{attempt}", about: "Attempts at items that had failed before.", of: func(s *consistency.RelayStats) float64 { return float64(s.Retried) }},
	{name: "relay.not_reloaded", unit: "{key}", about: "Keys invalidated instead of reloaded.", of: func(s *consistency.RelayStats) float64 { return float64(s.NotReloaded) }},
	{name: "relay.bad", unit: "{attempt}", about: "Attempts at items without a valid key.", of: func(s *consistency.RelayStats) float64 { return float64(s.Bad) }},
	{name: "relay.unknown", unit: "{attempt}", about: "Attempts at items whose loader this process does not have, left to other relays.", of: func(s *consistency.RelayStats) float64 { return float64(s.Unknown) }},
	{name: "relay.ended", unit: "{boolean}", about: "1 if the relay has ended because its cache was closed.", gauge: true, of: func(s *consistency.RelayStats) float64 { return truth(s.Ended) }},
	{name: "relay.queue_errors", unit: "{call}", about: "Failed calls of the queue.", of: func(s *consistency.RelayStats) float64 { return float64(s.QueueErrors) }},
	{name: "relay.alerts", unit: "{alert}", about: "Alerts raised.", of: func(s *consistency.RelayStats) float64 { return float64(s.Alerts) }},
	{name: "relay.panics", unit: "{panic}", about: "Panics of OnAlert, the Logger or the queue.", of: func(s *consistency.RelayStats) float64 { return float64(s.Panics) }},
	{name: "relay.out", unit: "{boolean}", about: "1 if all recent attempts failed because Redis was down.", gauge: true, of: func(s *consistency.RelayStats) float64 { return truth(s.Out) }},
	{name: "relay.lag", unit: "s", about: "Mean time that completed items had been in the queue.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.Lag.Seconds() }},
	{name: "relay.lag.max", unit: "s", about: "Longest time that a completed item had been in the queue.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.MaxLag.Seconds() }},
	{name: "relay.depth", unit: "{item}", about: "Items in the queue, for all relays together.", gauge: true, of: func(s *consistency.RelayStats) float64 { return float64(s.Depth.Items) }},
	{name: "relay.due", unit: "{item}", about: "Items in the queue that are due.", gauge: true, of: func(s *consistency.RelayStats) float64 { return float64(s.Depth.Due) }},
	{name: "relay.oldest", unit: "s", about: "Age of the oldest item in the queue.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.Depth.Oldest.Seconds() }},
	{name: "relay.others", unit: "{item}", about: "Items of other namespaces that no relay claims. 1,001 means more than 1,000.", gauge: true, of: func(s *consistency.RelayStats) float64 { return float64(s.Depth.Others) }},
	{name: "relay.depth.age", unit: "s", about: "Age of the figures about the queue.", gauge: true, of: func(s *consistency.RelayStats) float64 { return s.DepthAge.Seconds() }},
}

var consumerMeasures = []measure[canal.Stats]{
	{name: "consumer.active", unit: "{boolean}", about: "1 if this process consumes changes.", gauge: true, of: func(s *canal.Stats) float64 { return truth(s.Active) }},
	{name: "consumer.batches", unit: "{batch}", about: "Completed batches.", of: func(s *canal.Stats) float64 { return float64(s.Batches) }},
	{name: "consumer.changes", unit: "{change}", about: "Completed changes.", of: func(s *canal.Stats) float64 { return float64(s.Changes) }},
	{name: "consumer.messages", unit: "{message}", about: "Applied messages of an outbox in the log of the database.", of: func(s *canal.Stats) float64 { return float64(s.Messages) }},
	{name: "consumer.handled", unit: "{change}", about: "Changes processed by a handler.", of: func(s *canal.Stats) float64 { return float64(s.Handled) }},
	{name: "consumer.handler_errors", unit: "{call}", about: "Failed calls of handlers.", of: func(s *canal.Stats) float64 { return float64(s.HandlerErrors) }},
	{name: "consumer.misunderstood", unit: "{change}", about: "Changes that could not be understood; their loaders were invalidated as a whole.", of: func(s *canal.Stats) float64 { return float64(s.Misunderstood) }},
	{name: "consumer.malformed", unit: "{message}", about: "Messages that could not be read.", of: func(s *canal.Stats) float64 { return float64(s.Malformed) }},
	{name: "consumer.parked", unit: "{change}", about: "Changes that were parked.", of: func(s *canal.Stats) float64 { return float64(s.Parked) }},
	{name: "consumer.positions_lost", unit: "{loss}", about: "Times that the position in the log was lost.", of: func(s *canal.Stats) float64 { return float64(s.PositionsLost) }},
	{name: "consumer.failures", unit: "{failure}", about: "Failures that are retried.", of: func(s *canal.Stats) float64 { return float64(s.Failures) }},
	{name: "consumer.alerts", unit: "{alert}", about: "Alerts raised.", of: func(s *canal.Stats) float64 { return float64(s.Alerts) }},
	{name: "consumer.missing_tables", unit: "{binding}", about: "Bindings whose table does not exist in the database.", gauge: true, of: func(s *canal.Stats) float64 { return float64(len(s.MissingTables)) }},
	{name: "consumer.no_changes", unit: "{binding}", about: "Bindings without a change since the process started.", gauge: true, of: func(s *canal.Stats) float64 { return float64(len(s.NoChanges)) }},
	{name: "consumer.busy", unit: "s", about: "How long the current call has been running, for example a handler.", gauge: true, of: func(s *canal.Stats) float64 { return s.Busy.Seconds() }},
	{name: "consumer.lag", unit: "s", about: "How far the consumer is behind the database. -1 if that is unknown, or another process consumes.", gauge: true, of: func(s *canal.Stats) float64 { return lag(s.Lag) }},
	{name: "consumer.retained", unit: "By", about: "Log that the server keeps for this consumer, as PostgreSQL does. -1 if that is unknown.", gauge: true, of: func(s *canal.Stats) float64 { return float64(s.Retained) }},
}

// meterMeasures are collected for a meter, resultMeasures and consistencyMeasures for each time of
// its Options.After.
var meterMeasures = []measure[meter.Stats]{
	{name: "meter.writes", unit: "{key}", about: "Writes reported to the meter.", of: func(s *meter.Stats) float64 { return float64(s.Writes) }},
	{name: "meter.sampled", unit: "{key}", about: "Writes sampled.", of: func(s *meter.Stats) float64 { return float64(s.Sampled) }},
	{name: "meter.unreadable", unit: "{key}", about: "Samples of a loader or key that this process does not know.", of: func(s *meter.Stats) float64 { return float64(s.Unreadable) }},
	{name: "meter.dropped", unit: "{key}", about: "Samples dropped because there were too many.", of: func(s *meter.Stats) float64 { return float64(s.Dropped) }},
	{name: "meter.in_flight", unit: "{key}", about: "Samples that are still to be checked.", gauge: true, of: func(s *meter.Stats) float64 { return float64(s.InFlight) }},
	{name: "meter.questions", unit: "{question}", about: "Questions published.", of: func(s *meter.Stats) float64 { return float64(s.Questions) }},
	{name: "meter.questions.failed", unit: "{question}", about: "Questions that failed in Redis, or whose replies could not be read.", of: func(s *meter.Stats) float64 { return float64(s.QuestionsFailed) }},
	{name: "meter.asked", unit: "{process}", about: "Processes that received a question, summed over all questions.", of: func(s *meter.Stats) float64 { return float64(s.Asked) }},
	{name: "meter.answered", unit: "{process}", about: "Processes that replied, summed over all questions.", of: func(s *meter.Stats) float64 { return float64(s.Answered) }},
	{name: "meter.malformed", unit: "{answer}", about: "Replies that could not be read.", of: func(s *meter.Stats) float64 { return float64(s.Malformed) }},
}

var resultMeasures = []measure[meter.Result]{
	{name: "meter.checks", unit: "{key}", about: "Checks of samples, by result.", with: []attribute.KeyValue{attribute.String("cacheaside.found", "consistent")}, of: func(s *meter.Result) float64 { return float64(s.Consistent) }},
	{name: "meter.checks", unit: "{key}", about: "Checks of samples, by result.", with: []attribute.KeyValue{attribute.String("cacheaside.found", "different")}, of: func(s *meter.Result) float64 { return float64(s.Different) }},
	{name: "meter.checks", unit: "{key}", about: "Checks of samples, by result.", with: []attribute.KeyValue{attribute.String("cacheaside.found", "undecided")}, of: func(s *meter.Result) float64 { return float64(s.Undecided) }},
	{name: "meter.undecided", unit: "{key}", about: "Checks without a result, by reason.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "late")}, of: func(s *meter.Result) float64 { return float64(s.Late) }},
	{name: "meter.undecided", unit: "{key}", about: "Checks without a result, by reason.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "failed")}, of: func(s *meter.Result) float64 { return float64(s.Failed) }},
	{name: "meter.undecided", unit: "{key}", about: "Checks without a result, by reason.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "unanswered")}, of: func(s *meter.Result) float64 { return float64(s.Unanswered) }},
	{name: "meter.undecided", unit: "{key}", about: "Checks without a result, by reason.", with: []attribute.KeyValue{attribute.String("cacheaside.why", "not_known")}, of: func(s *meter.Result) float64 { return float64(s.NotKnown) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "none")}, of: func(s *meter.Result) float64 { return float64(s.Redis.None) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "young")}, of: func(s *meter.Result) float64 { return float64(s.Redis.Young) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "same")}, of: func(s *meter.Result) float64 { return float64(s.Redis.Same) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "different")}, of: func(s *meter.Result) float64 { return float64(s.Redis.Different) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "redis"), attribute.String("cacheaside.copy", "not_known")}, of: func(s *meter.Result) float64 { return float64(s.Redis.NotKnown) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "none")}, of: func(s *meter.Result) float64 { return float64(s.Memory.None) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "young")}, of: func(s *meter.Result) float64 { return float64(s.Memory.Young) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "same")}, of: func(s *meter.Result) float64 { return float64(s.Memory.Same) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "different")}, of: func(s *meter.Result) float64 { return float64(s.Memory.Different) }},
	{name: "meter.copies", unit: "{copy}", about: "Copies of the keys, by tier and result.", with: []attribute.KeyValue{attribute.String("cacheaside.tier", "memory"), attribute.String("cacheaside.copy", "not_known")}, of: func(s *meter.Result) float64 { return float64(s.Memory.NotKnown) }},
}

var consistencyMeasures = []measure[meter.Consistency]{
	{name: "meter.inconsistent", unit: "1", about: "Share of writes of which a copy still differed from the database after that time.", gauge: true, of: func(s *meter.Consistency) float64 { return s.Share }},
	{name: "meter.inconsistent.low", unit: "1", about: "Lower end of the 95 % interval of that share.", gauge: true, of: func(s *meter.Consistency) float64 { return s.Low }},
	{name: "meter.inconsistent.high", unit: "1", about: "Upper end of the 95 % interval of that share.", gauge: true, of: func(s *meter.Consistency) float64 { return s.High }},
	{name: "meter.nines", unit: "{nine}", about: "Nines of consistent writes, at the upper end of the interval.", gauge: true, of: func(s *meter.Consistency) float64 { return s.NinesAtLeast() }},
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// lag returns a lag in seconds, or -1 if it is unknown.
func lag(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Seconds()
}
