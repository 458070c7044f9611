package consistency

// point is called between statements, with a name for the place: one of points. Tests set it, to
// kill the process there.
var point = func(string) {}

// points are the places, those of a write first, and then of the removal of its rows, of a claim
// and of a Relay.
var points = []string{
	"held", "begun", "written", "admitted", "intended", "kept", "checked", "committed", "rolledback", "stored", "shown", "invalidated", "released", "queued",
	"removing", "removed", "claimed", "relaying", "relayed",
}
