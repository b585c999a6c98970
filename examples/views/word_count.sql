-- How often each word is in the posts. A word is letters and digits, in lower case.
SELECT word, count(*) AS uses, count(DISTINCT post) AS posts
FROM (
  SELECT id AS post, explode(regexp_extract_all(lower(body), r'[\p{L}\p{N}]+', 0)) AS word
  FROM posts
)
GROUP BY word
