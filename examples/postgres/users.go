package main

import (
	"context"
	"errors"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

// A User is a row of the table users.
type User struct {
	ID   int64
	City string
	Name string
}

// Users reads and writes the table users.
type Users struct {
	db     *sqlx.DB
	writer *consistency.Writer
	byID   *cacheaside.Loader[int64, User]
	byCity *cacheaside.Loader[string, []int64] // the ids of the users of a city
}

// group returns the group of the lists that contain the users of a city.
func group(city string) string { return "city:" + city }

func newUsers(cache *cacheaside.Cache, db *sqlx.DB, filter cacheaside.Filter) (*Users, error) {
	u := &Users{db: db}
	var errs [2]error
	u.byID, errs[0] = cacheaside.NewLoader(cache, "user", u.load, &cacheaside.LoaderOptions{Filter: filter})
	u.byCity, errs[1] = cacheaside.NewLoader(cache, "users-by-city", u.loadCity, &cacheaside.LoaderOptions{
		Groups: cacheaside.GroupsOf(func(city string, _ []int64) []string { return []string{group(city)} }),
	})
	return u, errors.Join(errs[:]...)
}

func (u *Users) load(ctx context.Context, id int64) (user User, err error) {
	err = u.db.GetContext(ctx, &user, "SELECT id, city, name FROM users WHERE id = $1", id)
	return user, err // sql.ErrNoRows: the row does not exist
}

func (u *Users) loadCity(ctx context.Context, city string) (ids []int64, err error) {
	err = u.db.SelectContext(ctx, &ids, "SELECT id FROM users WHERE city = $1 ORDER BY id LIMIT 100", city)
	return ids, err // a city without users is a value, not ErrNotFound
}

// Get returns a user, or an error that Is cacheaside.ErrNotFound.
func (u *Users) Get(ctx context.Context, id int64) (User, error) { return u.byID.Get(ctx, id) }

// InCity returns the users of a city.
func (u *Users) InCity(ctx context.Context, city string) ([]User, error) {
	ids, err := u.byCity.Get(ctx, city)
	if err != nil {
		return nil, err
	}
	var all []User
	for user, err := range u.byID.Each(ctx, ids) {
		switch {
		case errors.Is(err, cacheaside.ErrNotFound): // deleted after the list was read
		case err != nil:
			return nil, err
		case user.City == city: // otherwise the user has just moved
			all = append(all, user)
		}
	}
	return all, nil
}

// Insert adds a row.
func (u *Users) Insert(ctx context.Context, user User) error {
	return u.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.NamedExecContext(ctx, "INSERT INTO users (id, city, name) VALUES (:id, :city, :name)", user)
		return err
	}, u.byID.Key(user.ID), u.byCity.GroupKey(group(user.City)))
}

// Rename changes the name of a user. No list depends on it.
func (u *Users) Rename(ctx context.Context, id int64, name string) error {
	return u.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
		return err
	}, u.byID.Key(id).Existing())
}
