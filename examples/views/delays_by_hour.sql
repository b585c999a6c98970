-- Delays by hour and airline, an hour of flights at a time, in steps of fifteen minutes.
-- Each flight belongs to four windows: it is counted by its scheduled time.
SELECT
  window(f.time_hour + make_dt_interval(0, 0, f.minute), '1 hour', '15 minutes') AS span,
  a.name AS airline,
  count(*) AS flights,
  avg(f.dep_delay) AS delay
FROM flights f JOIN airlines a USING (carrier)
GROUP BY 1, 2
