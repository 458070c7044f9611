SET time_zone = '+00:00';
CREATE DATABASE shop;
CREATE TABLE shop.item (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, name VARCHAR(50) CHARACTER SET utf8mb4, price DECIMAL(10,2), qty INT, born DATE, at DATETIME(3), seen TIMESTAMP(6) NULL, kind ENUM('new','old','it''s'), tags SET('a','b','c'), flags BIT(8), y YEAR, doc JSON, body BLOB, note TEXT NULL);
INSERT INTO shop.item VALUES (18446744073709551615, 'Ü "x"', -1234.50, -7, '2026-11-22', '2026-11-22 13:14:15.120', '2026-11-22 13:14:15.000001', 'old', 'a,c', b'10100101', 2026, '{"a": [1, "x"]}', x'00FF41', NULL);
INSERT INTO shop.item VALUES (2, '', 0.07, 0, '1969-12-31', '1969-12-31 23:59:59.999', '2026-11-22 00:00:00', 'it''s', '', b'0', 1970, '{}', x'', 'text');
UPDATE shop.item SET price = 10.00, note = 'now' WHERE id = 18446744073709551615;
UPDATE shop.item SET id = 3 WHERE id = 2;
DELETE FROM shop.item WHERE id = 18446744073709551615;
