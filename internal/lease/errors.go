package lease

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// isReply tells whether err is an answer of Redis, so that its command is known not to have been carried out. Any other error, a
// time-out say, leaves it open.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}
