-- Sessions of each user: page views that are less than thirty minutes apart.
-- A view of a page that arrives late can merge two sessions; one that is deleted can split one.
SELECT
  user_id,
  session_window(at, '30 minutes') AS span,
  count(*) AS views,
  min_by(page, struct(at, id)) AS first_page,
  max_by(page, struct(at, id)) AS last_page
FROM (SELECT id, user_id, at, get_json_object(details, '$.page') AS page FROM page_views)
GROUP BY user_id, session_window(at, '30 minutes')
