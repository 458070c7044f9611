//go:build accept

package bench

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/zeromicro/go-zero/core/stores/sqlc"
	"github.com/zeromicro/go-zero/core/stores/sqlx"
)

var (
	_ = (*usersModel).FindOne
	_ = (*usersModel).FindOneByEmail
	_ = (*usersModel).UpdateEmail
)

// snippet: go-zero, before
type usersModel struct{ sqlc.CachedConn }

func (m *usersModel) FindOne(ctx context.Context, id int64) (*user, error) {
	var u user
	err := m.QueryRowCtx(ctx, &u, fmt.Sprint("cache:users:id:", id),
		func(ctx context.Context, conn sqlx.SqlConn, v any) error {
			return conn.QueryRowCtx(ctx, v, "select id, email from users where id = ? limit 1", id)
		})
	return &u, err // sqlc.ErrNotFound: no such row
}

func (m *usersModel) FindOneByEmail(ctx context.Context, email string) (*user, error) {
	var u user
	err := m.QueryRowIndexCtx(ctx, &u, "cache:users:email:"+email,
		func(primary any) string { return fmt.Sprint("cache:users:id:", primary) },
		func(ctx context.Context, conn sqlx.SqlConn, v any) (any, error) {
			err := conn.QueryRowCtx(ctx, v, "select id, email from users where email = ? limit 1", email)
			return u.ID, err
		},
		func(ctx context.Context, conn sqlx.SqlConn, v, primary any) error {
			return conn.QueryRowCtx(ctx, v, "select id, email from users where id = ? limit 1", primary)
		})
	return &u, err
}

func (m *usersModel) UpdateEmail(ctx context.Context, id int64, old, email string) error {
	_, err := m.ExecCtx(ctx, func(ctx context.Context, conn sqlx.SqlConn) (sql.Result, error) {
		return conn.ExecCtx(ctx, "update users set email = ? where id = ?", email, id)
	}, fmt.Sprint("cache:users:id:", id), "cache:users:email:"+old, "cache:users:email:"+email)
	return err
}

// end
