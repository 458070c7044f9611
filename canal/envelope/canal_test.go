package envelope

import "testing"

// quirk is a message, what it says, and who says that a program writes it.
type quirk struct {
	source, message, want string
	fails                 string // the error, without what is before it
}

func (q quirk) check(t *testing.T, decode Decoder) {
	t.Helper()
	changes, err := decode([]byte(q.message))
	if got := told(changes); got != q.want {
		t.Errorf("%s: got\n%q\nwant\n%q", q.source, got, q.want)
	}
	var text string
	if err != nil {
		text = err.Error()
	}
	if text != q.fails {
		t.Errorf("%s: error %q, want %q", q.source, text, q.fails)
	}
}

func TestCanal(t *testing.T) {
	const (
		converter = "alibaba/canal, connector/core/src/main/java/" +
			"com/alibaba/otter/canal/connector/core/producer/MQMessageUtils.java"
		parser = "alibaba/canal, parse/src/main/java/" +
			"com/alibaba/otter/canal/parse/inbound/mysql/dbsync/LogEventConvert.java"
		protocol = "alibaba/canal, protocol/src/main/java/com/alibaba/otter/canal/protocol/EntryProtocol.proto"
		aligned  = "https://github.com/alibaba/canal/issues/4352"
		shorter  = "https://github.com/alibaba/canal/pull/5021"
	)
	for name, q := range map[string]quirk{
		"an insert of one row": {source: "https://github.com/alibaba/canal/issues/3179",
			message: `{"data":[{"id":"27","name":"ly"}],"database":"testclone","es":1605694568000,"id":9,"isDdl":false,"mysqlType":{"id":"int","name":"varchar(5)"},"old":null,"pkNames":["id"],"sql":"","sqlType":{"id":4,"name":12},"table":"t","ts":1605694568678,"type":"INSERT"}`,
			want:    `insert testclone.t: none -> id=27|name=ly`},
		"several rows in a message": {source: "https://github.com/alibaba/canal/issues/2789",
			message: `{"data":[{"id":"1"},{"id":"2"}],"database":"d","table":"t","type":"DELETE","isDdl":false}`,
			want:    "delete d.t: id=1 -> none\ndelete d.t: id=2 -> none"},
		"old has what was changed, in the same place": {source: aligned,
			message: `{"data":[{"id":"1","a":"x","b":"y"},{"id":"2","a":"x","b":null}],"old":[{"a":"w"},{"b":"z"}],"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t: id=1|a=w|b=y -> id=1|a=x|b=y\nupdate d.t: id=2|a=x|b=z -> id=2|a=x|b NULL"},
		"old has what was changed in rows before, too": {source: converter,
			message: `{"data":[{"id":"1","a":"x","b":"y"},{"id":"2","a":"x","b":"y"}],"old":[{"a":"w"},{"a":"x","b":"z"}],"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t: id=1|a=w|b=y -> id=1|a=x|b=y\nupdate d.t: id=2|a=x|b=z -> id=2|a=x|b=y"},
		"less old than rows: whose it is is not known": {source: shorter,
			message: `{"data":[{"id":"1","a":"x"},{"id":"2","a":"y"}],"old":[{"a":"w"}],"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t:  -> id=1|a=x\nupdate d.t:  -> id=2|a=y"},
		"no old": {source: shorter,
			message: `{"data":[{"id":"1"}],"old":null,"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t:  -> id=1"},
		"an old that is empty, as with binlog_row_image=MINIMAL": {source: converter,
			message: `{"data":[{"email":"new"}],"old":[{}],"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t:  -> email=new"},
		"an old of columns that are not in the row": {source: shorter,
			message: `{"data":[{"id":"1"}],"old":[{"name":"x"}],"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t:  -> id=1"},
		"an old in which nothing differs": {source: shorter,
			message: `{"data":[{"id":"1","a":"x"}],"old":[{"a":"x"}],"database":"d","table":"t","type":"UPDATE"}`,
			want:    "update d.t:  -> id=1|a=x"},
		"pkNames null": {source: converter,
			message: `{"data":[{"a":"x"}],"pkNames":null,"mysqlType":{"a":null},"database":"d","table":"t","type":"INSERT"}`,
			want:    "insert d.t: none -> a=x"},
		"types": {source: parser,
			message: `{"data":[{"u":"18446744073709551615","bin":"\u0000ÿ","no":"€","bit":"165","y":"2026","zero":"0000","f":"1.0E10","d":"0.1","dec":"10.50","ts":"2026-11-22 13:14:15.120","n":null}],"mysqlType":{"u":"bigint(20) unsigned","bin":"varbinary(10)","no":"blob","bit":"bit(8)","y":"year","zero":"year(4)","f":"float(7,2)","d":"double unsigned","dec":"decimal(10,2)","ts":"timestamp(3)","n":"text"},"database":"d","table":"t","type":"INSERT"}`,
			want: "insert d.t: none -> u=18446744073709551615|bin=\x00\xff|no?|bit=165|y=2026|zero=0000" +
				"|f=1e+10|d=0.1|dec=10.50|ts=2026-11-22 13:14:15.120|n NULL"},
		"an ENUM is its number": {source: "https://github.com/alibaba/canal/issues/157",
			message: `{"data":[{"a":"2","b":"0","c":"3","d":"x","e":"1"}],"mysqlType":{"a":"ENUM('it''s','b,c')","b":"enum('x')","c":"enum('x')","d":"enum('x')","e":"enum"},"database":"d","table":"t","type":"INSERT"}`,
			want:    "insert d.t: none -> a=b,c|b=|c?|d?|e?"},
		"an ENUM of figures": {source: "https://github.com/alibaba/canal/issues/2813",
			message: `{"data":[{"a":"2"}],"mysqlType":{"a":"enum('0','1')"},"database":"d","table":"t","type":"INSERT"}`,
			want:    "insert d.t: none -> a=1"},
		"a SET is its bits": {source: "https://github.com/alibaba/canal/issues/2610",
			message: `{"data":[{"a":"5","b":"0","c":"8"}],"mysqlType":{"a":"set('a','b','c')","b":"set('a')","c":"set('a','b','c')"},"database":"d","table":"t","type":"INSERT"}`,
			want:    "insert d.t: none -> a=a,c|b=|c?"},
		"TRUNCATE":     {source: protocol, message: `{"data":null,"database":"d","table":"t","type":"TRUNCATE","isDdl":true,"sql":"truncate table t"}`, want: "truncate d.t"},
		"ALTER":        {source: protocol, message: `{"data":null,"database":"d","table":"t","type":"ALTER","isDdl":true,"sql":"alter table t add c int"}`, want: "alter d.t"},
		"CREATE":       {source: protocol, message: `{"data":null,"database":"d","table":"t","type":"CREATE","isDdl":true,"sql":"create table t (id int, a int)"}`, want: "alter d.t"},
		"CREATE INDEX": {source: protocol, message: `{"data":null,"database":"d","table":"t","type":"CINDEX","isDdl":true,"sql":"create index i on t (a)"}`, want: ""},
		"DROP":         {source: protocol, message: `{"data":null,"database":"d","table":"t","type":"ERASE","isDdl":true,"sql":"DROP TABLE t"}`, want: "alter d.t"},
		"DROP of several, of which it names one": {source: parser,
			message: `{"data":null,"database":"d","table":"t","type":"ERASE","isDdl":true,"sql":"DROP TABLE t, u"}`, want: "alter d.t\nalter d.u"},
		"DROP of several, of several schemas": {source: parser,
			message: `{"data":null,"database":"d","table":"t","type":"ERASE","isDdl":true,"sql":"DROP TABLE t, e.u"}`, want: "alter .\nalter e.u"},
		"RENAME, of which it names the new name": {source: parser,
			message: `{"data":null,"database":"d","table":"b","type":"RENAME","isDdl":true,"sql":"RENAME TABLE a TO b"}`, want: "alter d.a\nreplace d.b"},
		"RENAME from a schema to another": {source: parser,
			message: `{"data":null,"database":"d","table":"b","type":"RENAME","isDdl":true,"sql":"RENAME TABLE c.a TO d.b"}`, want: "alter c.a\nreplace d.b"},
		"ALTER TABLE ... RENAME": {source: parser,
			message: `{"data":null,"database":"d","table":"a","type":"ALTER","isDdl":true,"sql":"alter table a rename to b"}`, want: "alter d.a\nreplace d.b"},
		"DDL without its text": {source: parser,
			message: `{"data":null,"database":"d","table":"a","type":"ALTER","isDdl":true}`, want: "replace . unread"},
		"DDL without a schema": {source: parser,
			message: `{"data":null,"database":"","table":"a","type":"TRUNCATE","isDdl":true,"sql":"truncate a"}`, want: "replace ."},
		"DROP DATABASE, which canal does not know": {source: parser,
			message: `{"data":null,"database":"mysql","table":"","type":"QUERY","isDdl":true,"sql":"drop database d"}`, want: "alter d."},
		"SAVEPOINT, which it does not know either": {source: parser,
			message: `{"data":null,"database":"d","table":null,"type":"QUERY","isDdl":true,"sql":"SAVEPOINT a"}`},
		"a table in the place of another, by an ALTER": {source: parser,
			message: `{"data":null,"database":"d","table":"a","type":"ALTER","isDdl":true,"sql":"alter table a exchange partition p with table b"}`, want: "replace d.a\nreplace d.b"},
		"a RENAME behind an index": {source: "alibaba/canal, parse/src/main/java/" +
			"com/alibaba/otter/canal/parse/inbound/mysql/ddl/DruidDdlParser.java",
			message: `{"data":null,"database":"d","table":"a","type":"CINDEX","isDdl":true,"sql":"alter table a add index i (n), rename to b"}`, want: "alter d.a\nreplace d.b"},
		"the schema of the first table, which is not that of the session": {source: "alibaba/canal, parse/src/main/java/" +
			"com/alibaba/otter/canal/parse/inbound/mysql/ddl/DruidDdlParser.java",
			message: `{"data":null,"database":"e","table":"u","type":"ERASE","isDdl":true,"sql":"DROP TABLE e.u, t"}`, want: "alter e.u\nalter ."},
		"names as they were written": {source: "https://dev.mysql.com/doc/refman/8.4/en/identifier-case-sensitivity.html",
			message: `{"data":null,"database":"D","table":"Users","type":"TRUNCATE","isDdl":true,"sql":"TRUNCATE TABLE Users"}`, want: "truncate D.Users\nreplace d.users"},
		"DDL that is not understood": {source: parser,
			message: `{"data":null,"database":"d","table":"t","type":"ALTER","isDdl":true,"sql":"alter private t"}`, want: "replace . unread"},
		"what canal does not know, without its text": {source: parser, message: `{"data":null,"type":"QUERY","isDdl":true}`, want: "replace . unread"},
		"what canal does not know, and changes rows": {source: parser, message: `{"data":null,"type":"QUERY","isDdl":true,"sql":"call private()"}`, want: "replace . unread"},
		"GRANT": {source: parser, message: `{"data":null,"type":"QUERY","isDdl":true,"sql":"GRANT SELECT ON d.* TO a"}`},
		"an ALTER of which there is no type": {source: "alibaba/canal, parse/src/main/java/" +
			"com/alibaba/otter/canal/parse/inbound/mysql/ddl/DruidDdlParser.java",
			message: `{"data":null,"database":"d","table":"b","type":"EVENTTYPECOMPATIBLEPROTO2","isDdl":true,"sql":"alter table d.a rename to d.b"}`, want: "alter d.a\nreplace d.b"},
		"the text of a statement whose rows follow": {source: "https://github.com/alibaba/canal/issues/3179",
			message: `{"data":null,"database":"","es":1605694568000,"id":9,"isDdl":false,"mysqlType":null,"old":null,"pkNames":null,"sql":"insert into t (id,name)values(27,'ly')","sqlType":null,"table":"t","ts":1605694568678,"type":"QUERY"}`},
		"a statement instead of rows, with binlog_format=STATEMENT": {source: parser,
			message: `{"data":null,"database":"d","table":"t","type":"UPDATE","isDdl":false,"sql":"update t set a = 1"}`, want: "replace . unread"},
		"XA COMMIT":                   {source: parser, message: `{"data":null,"database":"","table":"","type":"XACOMMIT","isDdl":false,"sql":"XA COMMIT 'private'"}`},
		"GTID":                        {source: protocol, message: `{"data":null,"database":"","table":"","type":"GTID","isDdl":false}`},
		"a new type":                  {source: protocol, message: `{"type":"private","database":"d"}`, fails: "envelope: canal's message: type: unknown value"},
		"a new type of a table":       {source: protocol, message: `{"type":"private","database":"d","table":"t"}`, want: "replace d.t unread", fails: "envelope: canal's message: type: unknown value"},
		"a statement that is no text": {source: protocol, message: `{"type":"ALTER","database":"d","table":"t","sql":{"private":1}}`, want: "replace . unread", fails: "envelope: canal's message: sql: wrong type"},
		"DDL, or no DDL":              {source: protocol, message: `{"type":"QUERY","database":"d","table":"t","isDdl":"private"}`, want: "replace . unread", fails: "envelope: canal's message: isDdl: wrong type"},
		"no table":                    {source: protocol, message: `{"type":"INSERT","database":"d","data":[{"id":"1"}]}`, fails: "envelope: canal's message: the message does not name its table"},
		"a row that is none": {source: converter,
			message: `{"type":"INSERT","database":"d","table":"t","data":[{"id":"1"},"private"]}`, want: "replace d.t unread", fails: "envelope: canal's message: data[1]: not a JSON object"},
		"an old that is none": {source: converter,
			message: `{"type":"UPDATE","database":"d","table":"t","data":[{"id":"1"}],"old":[["private"]]}`, want: "replace d.t unread", fails: "envelope: canal's message: old[0]: not a JSON object"},
		"a column twice": {source: converter,
			message: `{"type":"INSERT","database":"d","table":"t","data":[{"id":"1","id":"2"}]}`, want: "replace d.t unread", fails: "envelope: canal's message: data[0]: a name appears twice"},
		"data that is no list": {source: converter,
			message: `{"type":"INSERT","database":"d","table":"t","data":"private"}`, want: "replace d.t unread", fails: "envelope: canal's message: data: wrong type"},
		"a value that is no text": {source: converter,
			message: `{"type":"INSERT","database":"d","table":"t","data":[{"id":{"private":1}}]}`, want: "insert d.t: none -> id?"},
	} {
		t.Run(name, func(t *testing.T) { q.check(t, Canal) })
	}
}
