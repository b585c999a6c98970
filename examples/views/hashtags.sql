-- Hashtags by hour: the posts that have one, and how many people wrote them.
SELECT
  window(at, '1 hour') AS span, tag,
  count(DISTINCT post) AS posts, count(DISTINCT author) AS authors
FROM (
  SELECT id AS post, author, at, explode(regexp_extract_all(lower(body), r'#([\p{L}\p{N}_]+)', 1)) AS tag
  FROM posts
)
GROUP BY 1, 2
