package millrace.sinks;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * JSON objects → rows of one type, read from their bytes in one pass.
 *
 * <p>Spark's {@code from_json} makes a reader with its own buffers for every record. It doesn't
 * distinguish null from a missing value. Here, a struct's field {@value #MISSING} has the places of
 * the fields that its object lacks (null: none). A field {@value #BROKEN} has the whole text if it
 * isn't JSON of this type. A value that doesn't fit is null then.
 *
 * <p>A field's JSON name follows the colon in its Spark name ({@code 3:name}), since Spark doesn't
 * distinguish names that differ only by case. Types: boolean, smallint, int, bigint, double,
 * string, arrays of string, and structs. A string holds any value. If it isn't a JSON string, it is
 * the text of the JSON.
 */
public final class JsonReader implements Serializable {
  static final String MISSING = "_millrace_missing";
  static final String BROKEN = "_millrace_broken";

  private static final long serialVersionUID = 1L;

  private static final JsonFactory FACTORY =
      JsonFactory.builder()
          .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
          .disable(JsonFactory.Feature.INTERN_FIELD_NAMES)
          .streamReadConstraints(
              StreamReadConstraints.builder()
                  .maxStringLength(Integer.MAX_VALUE)
                  .maxNumberLength(Integer.MAX_VALUE)
                  .build())
          .build();

  private final StructType type;
  private transient Members members;

  JsonReader(StructType type) {
    this.type = type;
  }

  /** Return the row of a JSON object; Spark never calls it with null. */
  public InternalRow read(UTF8String text) {
    if (members == null) {
      members = new Members(type);
    }
    byte[] bytes = text.getBytes();
    try (JsonParser parser = FACTORY.createParser(bytes)) {
      if (parser.nextToken() != JsonToken.START_OBJECT) {
        return members.broken(new Object[members.size()], text);
      }
      Reading reading = new Reading(parser, bytes);
      Object[] values = reading.object(members);
      boolean whole = parser.nextToken() == null && !reading.unfit;
      return whole ? new GenericInternalRow(values) : members.broken(values, text);
    } catch (IOException error) { // reading memory can't fail: it isn't JSON, or not UTF-8
      return members.broken(new Object[members.size()], text);
    }
  }

  /** A struct's fields, by name. */
  private static final class Members {
    private final Map<String, Integer> places = new HashMap<>();
    private final DataType[] types;
    private final Members[] inner;
    private int missing = -1;
    private int broken = -1;

    Members(StructType type) {
      StructField[] fields = type.fields();
      types = new DataType[fields.length];
      inner = new Members[fields.length];
      for (int place = 0; place < fields.length; place++) {
        StructField field = fields[place];
        types[place] = field.dataType();
        if (field.name().equals(MISSING)) {
          missing = place;
        } else if (field.name().equals(BROKEN)) {
          broken = place;
        } else {
          places.put(field.name().substring(field.name().indexOf(':') + 1), place);
          if (field.dataType() instanceof StructType struct) {
            inner[place] = new Members(struct);
          }
        }
      }
    }

    int size() {
      return types.length;
    }

    InternalRow broken(Object[] values, UTF8String text) {
      if (broken >= 0) {
        values[broken] = text;
      }
      return new GenericInternalRow(values);
    }

    UnsafeArrayData unnamed(boolean[] named, int count) {
      int[] found = new int[count];
      int at = 0;
      for (int place : places.values()) {
        if (!named[place]) {
          found[at++] = place;
        }
      }
      return UnsafeArrayData.fromPrimitiveArray(found);
    }
  }

  /** A text while it is read; a value of another type becomes null, and sets {@code unfit}. */
  private static final class Reading {
    private final JsonParser parser;
    private final byte[] bytes;
    private boolean unfit;

    Reading(JsonParser parser, byte[] bytes) {
      this.parser = parser;
      this.bytes = bytes;
    }

    Object[] object(Members members) throws IOException {
      Object[] values = new Object[members.size()];
      boolean[] named = members.missing < 0 ? null : new boolean[members.size()];
      int left = members.places.size();
      String name;
      while ((name = parser.nextFieldName()) != null) {
        Integer place = members.places.get(name);
        JsonToken token = parser.nextToken();
        if (place == null) {
          parser.skipChildren();
          continue;
        }
        if (named != null && !named[place]) {
          named[place] = true;
          left--;
        }
        values[place] =
            token == JsonToken.VALUE_NULL ? null : value(token, members, place);
      }
      if (named != null && left > 0) {
        values[members.missing] = members.unnamed(named, left);
      }
      return values;
    }

    private Object value(JsonToken token, Members members, int place) throws IOException {
      DataType type = members.types[place];
      if (type == DataTypes.StringType) {
        return text(token);
      }
      if (type == DataTypes.DoubleType) {
        return number(token);
      }
      if (type == DataTypes.BooleanType && token.isBoolean()) {
        return token == JsonToken.VALUE_TRUE;
      }
      if (type instanceof StructType && token == JsonToken.START_OBJECT) {
        return new GenericInternalRow(object(members.inner[place]));
      }
      if (type instanceof ArrayType && token == JsonToken.START_ARRAY) {
        return texts();
      }
      return token == JsonToken.VALUE_NUMBER_INT ? integer(type) : refuse();
    }

    /** Skip the next value, and return null. */
    private Object refuse() throws IOException {
      unfit = true;
      parser.skipChildren();
      return null;
    }

    private Object integer(DataType type) throws IOException {
      if (parser.getNumberType() == JsonParser.NumberType.BIG_INTEGER) {
        return refuse();
      }
      long number = parser.getLongValue();
      if (type == DataTypes.LongType) {
        return number;
      }
      if (type == DataTypes.IntegerType && number == (int) number) {
        return (int) number;
      }
      return type == DataTypes.ShortType && number == (short) number ? (short) number : refuse();
    }

    private Object number(JsonToken token) throws IOException {
      if (token.isNumeric()) {
        return parser.getDoubleValue();
      }
      return switch (token == JsonToken.VALUE_STRING ? parser.getText() : "") {
        case "NaN" -> Double.NaN;
        case "Infinity" -> Double.POSITIVE_INFINITY;
        case "-Infinity" -> Double.NEGATIVE_INFINITY;
        default -> refuse();
      };
    }

    private UTF8String text(JsonToken token) throws IOException {
      if (token.isScalarValue()) {
        return UTF8String.fromString(parser.getText());
      }
      int start = (int) parser.currentTokenLocation().getByteOffset();
      parser.skipChildren();
      int end = (int) parser.currentLocation().getByteOffset();
      return UTF8String.fromBytes(bytes, start, end - start);
    }

    private GenericArrayData texts() throws IOException {
      List<UTF8String> found = new ArrayList<>();
      JsonToken token;
      while ((token = parser.nextToken()) != JsonToken.END_ARRAY) {
        found.add(token == JsonToken.VALUE_NULL ? null : text(token));
      }
      return new GenericArrayData(found.toArray());
    }
  }
}
