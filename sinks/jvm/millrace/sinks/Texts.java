package millrace.sinks;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.Dataset;

/** Rows of one text, as workers in Python read them. */
public final class Texts {
  private Texts() {}

  /**
   * The first column of each row, a text, in UTF-8.
   *
   * <p>By the rows' own query, so that it has what was observed of them afterwards.
   */
  public static JavaRDD<byte[]> of(Dataset<Row> rows) {
    return rows.queryExecution().toRdd().toJavaRDD().map(row -> row.getUTF8String(0).getBytes());
  }
}
