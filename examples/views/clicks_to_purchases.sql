-- Purchases with each click of the same user in the ten seconds before.
-- Either of the two can arrive first, and as late as it likes.
SELECT
  p.id AS purchase, c.id AS click, p.user_id, c.page,
  p.at AS purchased, unix_millis(p.at) - unix_millis(c.at) AS after_ms
FROM purchases p
JOIN clicks c
  ON c.user_id = p.user_id AND p.at BETWEEN c.at AND c.at + INTERVAL 10 SECONDS
