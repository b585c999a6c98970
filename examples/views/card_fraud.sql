-- Payments that are at least the sixth of their card within ten minutes.
-- A payment that arrives late counts: it can make fraud of payments that come after it.
WITH counted AS (
  SELECT
    id, card, at,
    CAST(amount AS decimal(18, 2)) AS amount,  -- numeric without precision is text in Delta
    count(*) OVER (
      PARTITION BY card ORDER BY at
      RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW
    ) AS payments
  FROM payments
)
SELECT * FROM counted WHERE payments > 5
